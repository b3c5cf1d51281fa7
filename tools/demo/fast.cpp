// Compiled parts of the training step: KDA recurrence, short convolution, index selection, attention residual with norm,
// gated norm and SiTU. Each has a plain PyTorch version in train.py, which stays the definition and is used without a compiler.
#include <torch/extension.h>
#include <ATen/Parallel.h>
#include <algorithm>
#include <cmath>
#include <vector>

using torch::Tensor;
constexpr int D = 32;        // head size of the KDA layers
constexpr int KEEP = 16;     // the backward pass recomputes states from every 16th one

// One token: S <- diag(a) S + k e^T with e = beta (v - (diag(a) S)^T k). Leaves u = v - S'^T k.
static inline void advance(float* __restrict__ S, const float* __restrict__ k, const float* __restrict__ v, const float* __restrict__ a, float beta, float* __restrict__ u) {
  float acc[D];
  for (int j = 0; j < D; j++) acc[j] = 0;
  for (int i = 0; i < D; i++)
    for (int j = 0; j < D; j++) { S[i * D + j] *= a[i]; acc[j] += S[i * D + j] * k[i]; }
  for (int j = 0; j < D; j++) u[j] = v[j] - acc[j];
  for (int i = 0; i < D; i++)
    for (int j = 0; j < D; j++) S[i * D + j] += k[i] * beta * u[j];
}

static inline float normalise(const float* __restrict__ x, float* __restrict__ y, float scale) {
  float s = 0;
  for (int i = 0; i < D; i++) s += x[i] * x[i];
  float r = 1.0f / std::sqrt(s + 1e-6f);
  for (int i = 0; i < D; i++) y[i] = x[i] * r * scale;
  return r;
}

// q, k, v, g [B,T,H,D], beta [B,T,H] (q and k not normalised yet) -> o [B,T,H,D], states [B,H,ceil(T/KEEP),D,D]
std::vector<Tensor> kda_forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta) {
  int64_t B = q.size(0), T = q.size(1), H = q.size(2), n = (T + KEEP - 1) / KEEP;
  TORCH_CHECK(q.size(3) == D && q.is_contiguous() && k.is_contiguous() && v.is_contiguous() && g.is_contiguous() && beta.is_contiguous());
  Tensor o = torch::empty_like(q), st = torch::empty({B, H, n, D, D}, q.options());
  const float *Q = q.data_ptr<float>(), *K = k.data_ptr<float>(), *V = v.data_ptr<float>(), *G = g.data_ptr<float>(), *Be = beta.data_ptr<float>();
  float *O = o.data_ptr<float>(), *ST = st.data_ptr<float>();
  at::parallel_for(0, B * H, 1, [&](int64_t lo, int64_t hi) {
    for (int64_t bh = lo; bh < hi; bh++) {
      int64_t b = bh / H, h = bh % H;
      alignas(64) float S[D * D] = {0}, qn[D], kn[D], a[D], u[D];
      for (int64_t t = 0; t < T; t++) {
        if (t % KEEP == 0) std::copy(S, S + D * D, ST + (bh * n + t / KEEP) * D * D);
        int64_t at = ((b * T + t) * H + h);
        normalise(Q + at * D, qn, 1.0f / std::sqrt((float)D));
        normalise(K + at * D, kn, 1.0f);
        for (int i = 0; i < D; i++) a[i] = std::exp(G[at * D + i]);
        advance(S, kn, V + at * D, a, Be[at], u);
        float acc[D];
        for (int j = 0; j < D; j++) acc[j] = 0;
        for (int i = 0; i < D; i++)
          for (int j = 0; j < D; j++) acc[j] += S[i * D + j] * qn[i];
        for (int j = 0; j < D; j++) O[at * D + j] = acc[j];
      }
    }
  });
  return {o, st};
}

std::vector<Tensor> kda_backward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor st, Tensor dO) {
  int64_t B = q.size(0), T = q.size(1), H = q.size(2), n = (T + KEEP - 1) / KEEP;
  dO = dO.contiguous();
  Tensor dq = torch::empty_like(q), dk = torch::empty_like(q), dv = torch::empty_like(q), dg = torch::empty_like(q), db = torch::empty_like(beta);
  const float *Q = q.data_ptr<float>(), *K = k.data_ptr<float>(), *V = v.data_ptr<float>(), *G = g.data_ptr<float>(), *Be = beta.data_ptr<float>(), *ST = st.data_ptr<float>(), *GO = dO.data_ptr<float>();
  float *DQ = dq.data_ptr<float>(), *DK = dk.data_ptr<float>(), *DV = dv.data_ptr<float>(), *DG = dg.data_ptr<float>(), *DB = db.data_ptr<float>();
  const float sc = 1.0f / std::sqrt((float)D);
  at::parallel_for(0, B * H, 1, [&](int64_t lo, int64_t hi) {
    std::vector<float> before((KEEP + 1) * D * D);             // state before each token of the piece, then the last one
    for (int64_t bh = lo; bh < hi; bh++) {
      int64_t b = bh / H, h = bh % H;
      alignas(64) float dS[D * D] = {0}, qn[KEEP][D], kn[KEEP][D], a[KEEP][D], u[KEEP][D], rq[KEEP], rk[KEEP];
      for (int64_t c = n - 1; c >= 0; c--) {
        int m = (int)std::min<int64_t>(KEEP, T - c * KEEP);
        std::copy(ST + (bh * n + c) * D * D, ST + (bh * n + c + 1) * D * D, before.begin());
        for (int t = 0; t < m; t++) {
          int64_t at = ((b * T + c * KEEP + t) * H + h);
          rq[t] = normalise(Q + at * D, qn[t], sc);
          rk[t] = normalise(K + at * D, kn[t], 1.0f);
          for (int i = 0; i < D; i++) a[t][i] = std::exp(G[at * D + i]);
          std::copy(before.begin() + t * D * D, before.begin() + (t + 1) * D * D, before.begin() + (t + 1) * D * D);
          advance(before.data() + (t + 1) * D * D, kn[t], V + at * D, a[t], Be[at], u[t]);
        }
        for (int t = m - 1; t >= 0; t--) {
          int64_t at = ((b * T + c * KEEP + t) * H + h);
          const float* __restrict__ go = GO + at * D;
          const float* __restrict__ S1 = before.data() + (t + 1) * D * D;   // after the token
          const float* __restrict__ S0 = before.data() + t * D * D;         // before it
          const float be = Be[at];
          float dqn[D], dkn[D], de[D], du[D], dgl[D];
          for (int j = 0; j < D; j++) de[j] = 0;
          for (int i = 0; i < D; i++) {
            float s = 0;
            for (int j = 0; j < D; j++) {
              s += S1[i * D + j] * go[j];
              dS[i * D + j] += qn[t][i] * go[j];
              de[j] += dS[i * D + j] * kn[t][i];
            }
            dqn[i] = s;
          }
          float dbe = 0;
          for (int j = 0; j < D; j++) { dbe += de[j] * u[t][j]; du[j] = be * de[j]; }
          for (int i = 0; i < D; i++) {
            float s = 0, w = 0, z = 0, ai = a[t][i], ki = kn[t][i];
            for (int j = 0; j < D; j++) {
              float d = dS[i * D + j], sp = S0[i * D + j] * ai;
              s += d * (be * u[t][j]);
              w += sp * du[j];
              d -= ki * du[j];
              z += d * sp;
              dS[i * D + j] = d * ai;
            }
            dkn[i] = s - w;
            dgl[i] = z;
          }
          float pq = 0, pk = 0;
          for (int i = 0; i < D; i++) { pq += dqn[i] * qn[t][i]; pk += dkn[i] * kn[t][i]; }
          pq /= sc * sc;
          for (int i = 0; i < D; i++) {
            DQ[at * D + i] = rq[t] * sc * (dqn[i] - qn[t][i] * pq);
            DK[at * D + i] = rk[t] * (dkn[i] - kn[t][i] * pk);
            DV[at * D + i] = du[i];
            DG[at * D + i] = dgl[i];
          }
          DB[at] = dbe;
        }
      }
    }
  });
  return {dq, dk, dv, dg, db};
}

// Causal depthwise convolution with 4 taps + SiLU. x [B,T,C] (rows may be strided), w [C,4] (last tap = current token) -> y [B,T,C]
Tensor conv_forward(Tensor x, Tensor w) {
  int64_t B = x.size(0), T = x.size(1), C = x.size(2), sb = x.stride(0), sx = x.stride(1);
  Tensor wt = w.t().contiguous(), y = torch::empty({B, T, C}, x.options());
  const float *X = x.data_ptr<float>(), *W = wt.data_ptr<float>();
  float* Y = y.data_ptr<float>();
  at::parallel_for(0, B * T, 256, [&](int64_t lo, int64_t hi) {
    for (int64_t r = lo; r < hi; r++) {
      int64_t b = r / T, t = r % T;
      float* __restrict__ out = Y + r * C;
      for (int64_t c = 0; c < C; c++) out[c] = 0;
      for (int d = 0; d < 4 && d <= t; d++) {
        const float* __restrict__ in = X + b * sb + (t - d) * sx;
        const float* __restrict__ ww = W + (3 - d) * C;
        for (int64_t c = 0; c < C; c++) out[c] += in[c] * ww[c];
      }
      for (int64_t c = 0; c < C; c++) out[c] = out[c] / (1.0f + std::exp(-out[c]));
    }
  });
  return y;
}

std::vector<Tensor> conv_backward(Tensor x, Tensor w, Tensor dy) {
  int64_t B = x.size(0), T = x.size(1), C = x.size(2), sb = x.stride(0), sx = x.stride(1);
  dy = dy.contiguous();
  Tensor wt = w.t().contiguous(), dz = torch::empty({B, T, C}, x.options()), dx = torch::empty({B, T, C}, x.options());
  int nt = at::get_num_threads();
  Tensor dwt = torch::zeros({nt, 4, C}, x.options());
  const float *X = x.data_ptr<float>(), *W = wt.data_ptr<float>(), *GY = dy.data_ptr<float>();
  float *DZ = dz.data_ptr<float>(), *DX = dx.data_ptr<float>(), *DW = dwt.data_ptr<float>();
  at::parallel_for(0, B * T, 256, [&](int64_t lo, int64_t hi) {
    float* dw = DW + at::get_thread_num() * 4 * C;
    std::vector<float> zz(C);
    for (int64_t r = lo; r < hi; r++) {
      int64_t b = r / T, t = r % T;
      float* __restrict__ z = zz.data();
      float* __restrict__ o = DZ + r * C;
      const float* __restrict__ gy = GY + r * C;
      for (int64_t c = 0; c < C; c++) z[c] = 0;
      for (int d = 0; d < 4 && d <= t; d++) {
        const float* __restrict__ in = X + b * sb + (t - d) * sx;
        const float* __restrict__ ww = W + (3 - d) * C;
        for (int64_t c = 0; c < C; c++) z[c] += in[c] * ww[c];
      }
      for (int64_t c = 0; c < C; c++) { float s = 1.0f / (1.0f + std::exp(-z[c])); o[c] = gy[c] * s * (1.0f + z[c] * (1.0f - s)); }
      for (int d = 0; d < 4 && d <= t; d++) {
        const float* __restrict__ in = X + b * sb + (t - d) * sx;
        float* __restrict__ dd = dw + (3 - d) * C;
        for (int64_t c = 0; c < C; c++) dd[c] += in[c] * o[c];
      }
    }
  });
  at::parallel_for(0, B * T, 256, [&](int64_t lo, int64_t hi) {
    for (int64_t r = lo; r < hi; r++) {
      int64_t t = r % T;
      float* __restrict__ o = DX + r * C;
      for (int64_t c = 0; c < C; c++) o[c] = 0;
      for (int d = 0; d < 4 && t + d < T; d++) {
        const float* __restrict__ in = DZ + (r + d) * C;
        const float* __restrict__ ww = W + (3 - d) * C;
        for (int64_t c = 0; c < C; c++) o[c] += in[c] * ww[c];
      }
    }
  });
  return {dx, dwt.sum(0).t().contiguous()};
}

// Index selection: q [B,T,H,di], k [B,T,di], w [B,T,H] -> additive mask [B,1,T,T]: 0 at the K best visible positions, -inf elsewhere
Tensor select_mask(Tensor q, Tensor k, Tensor w, int64_t K) {
  int64_t B = q.size(0), T = q.size(1), H = q.size(2), di = q.size(3);
  const int64_t R = 32;
  Tensor out = torch::empty({B, 1, T, T}, q.options());
  q = q.contiguous(); w = w.contiguous();
  float* M = out.data_ptr<float>();
  const float* Wp = w.data_ptr<float>();
  at::parallel_for(0, B * ((T + R - 1) / R), 1, [&](int64_t lo, int64_t hi) {
    at::NoGradGuard ng;
    std::vector<float> s(T), tmp(T);
    for (int64_t i = lo; i < hi; i++) {
      int64_t nb = (T + R - 1) / R, b = i / nb, r0 = (i % nb) * R, r1 = std::min(T, r0 + R);
      Tensor sc = torch::mm(q[b].slice(0, r0, r1).reshape({(r1 - r0) * H, di}), k[b].slice(0, 0, r1).t());
      const float* S = sc.data_ptr<float>();
      for (int64_t r = r0; r < r1; r++) {
        int64_t vis = r + 1;
        std::fill(s.begin(), s.begin() + vis, 0.0f);
        for (int64_t h = 0; h < H; h++) {
          float ww = Wp[(b * T + r) * H + h];
          const float* __restrict__ row = S + ((r - r0) * H + h) * r1;
          float* __restrict__ sp = s.data();
          for (int64_t j = 0; j < vis; j++) sp[j] += ww * std::max(row[j], 0.0f);
        }
        float* m = M + (b * T + r) * T;
        std::fill(m, m + T, -INFINITY);
        if (vis <= K) { std::fill(m, m + vis, 0.0f); continue; }
        std::copy(s.begin(), s.begin() + vis, tmp.begin());
        std::nth_element(tmp.begin(), tmp.begin() + (K - 1), tmp.begin() + vis, std::greater<float>());
        float edge = tmp[K - 1];
        int64_t used = 0;
        for (int64_t j = 0; j < vis; j++) if (s[j] > edge) { m[j] = 0; used++; }
        for (int64_t j = 0; j < vis && used < K; j++) if (s[j] == edge) { m[j] = 0; used++; }    // ties: lower position first
      }
    }
  });
  return out;
}

// Attention residual + RMS norm: y = rmsnorm(sum_j softmax_j(rms(x_j) . wm) x_j) * nw. xs: 1 to 4 tensors [N,C]; with one, plain RMS norm.
// saved [N, 2n+1]: weights a_j, factors r_j, factor of the norm
constexpr int MAX_SRC = 4;

std::vector<Tensor> mixnorm_forward(std::vector<Tensor> xs, Tensor wm, Tensor nw, double eps) {
  int n = xs.size();
  int64_t C = nw.numel(), N = xs[0].numel() / C;
  TORCH_CHECK(n <= MAX_SRC);
  Tensor y = torch::empty_like(xs[0]), sv = torch::empty({N, 2 * n + 1}, y.options());
  const float* X[MAX_SRC];
  for (int j = 0; j < n; j++) { TORCH_CHECK(xs[j].is_contiguous()); X[j] = xs[j].data_ptr<float>(); }
  const float *WM = wm.data_ptr<float>(), *NW = nw.data_ptr<float>();
  float *Y = y.data_ptr<float>(), *SV = sv.data_ptr<float>();
  at::parallel_for(0, N, 64, [&](int64_t lo, int64_t hi) {
    for (int64_t i = lo; i < hi; i++) {
      float l[MAX_SRC], *a = SV + i * (2 * n + 1), *r = a + n, top = -1e30f, den = 0;
      for (int j = 0; j < n; j++) {
        const float* __restrict__ x = X[j] + i * C;
        float ss = 0, dt = 0;
        for (int64_t c = 0; c < C; c++) { ss += x[c] * x[c]; dt += x[c] * WM[c]; }
        r[j] = 1.0f / std::sqrt(ss / C + (float)eps);
        l[j] = dt * r[j];
        top = std::max(top, l[j]);
      }
      for (int j = 0; j < n; j++) den += a[j] = std::exp(l[j] - top);
      for (int j = 0; j < n; j++) a[j] /= den;
      float* __restrict__ o = Y + i * C;
      float ss = 0;
      for (int64_t c = 0; c < C; c++) {
        float m = 0;
        for (int j = 0; j < n; j++) m += a[j] * X[j][i * C + c];
        o[c] = m;
        ss += m * m;
      }
      float R = a[2 * n] = 1.0f / std::sqrt(ss / C + (float)eps);
      for (int64_t c = 0; c < C; c++) o[c] *= R * NW[c];
    }
  });
  return {y, sv};
}

std::vector<Tensor> mixnorm_backward(std::vector<Tensor> xs, Tensor wm, Tensor nw, Tensor sv, Tensor gy) {
  int n = xs.size();
  int64_t C = nw.numel(), N = xs[0].numel() / C;
  gy = gy.contiguous();
  std::vector<Tensor> out;
  const float* X[MAX_SRC];
  float* DX[MAX_SRC];
  for (int j = 0; j < n; j++) {
    out.push_back(torch::empty_like(xs[j]));
    X[j] = xs[j].data_ptr<float>();
    DX[j] = out[j].data_ptr<float>();
  }
  int nt = at::get_num_threads();
  Tensor dw = torch::zeros({nt, 2, C}, gy.options());
  const float *WM = wm.data_ptr<float>(), *NW = nw.data_ptr<float>(), *SV = sv.data_ptr<float>(), *GY = gy.data_ptr<float>();
  float* DW = dw.data_ptr<float>();
  at::parallel_for(0, N, 64, [&](int64_t lo, int64_t hi) {
    float *dwm = DW + at::get_thread_num() * 2 * C, *dnw = dwm + C;
    std::vector<float> mm(C), dd(C);
    for (int64_t i = lo; i < hi; i++) {
      const float *a = SV + i * (2 * n + 1), *r = a + n, R = a[2 * n];
      float* __restrict__ m = mm.data();
      float* __restrict__ dm = dd.data();
      const float* __restrict__ g = GY + i * C;
      float gm = 0;
      for (int64_t c = 0; c < C; c++) {
        float t = 0;
        for (int j = 0; j < n; j++) t += a[j] * X[j][i * C + c];
        m[c] = t;
        dnw[c] += g[c] * t * R;
        dm[c] = g[c] * NW[c];
        gm += dm[c] * t;
      }
      float z = R * R * gm / C;
      for (int64_t c = 0; c < C; c++) dm[c] = R * (dm[c] - m[c] * z);
      float da[MAX_SRC], dt[MAX_SRC], mean = 0;
      for (int j = 0; j < n; j++) {
        const float* __restrict__ x = X[j] + i * C;
        float u = 0, v = 0;
        for (int64_t c = 0; c < C; c++) { u += dm[c] * x[c]; v += x[c] * WM[c]; }
        da[j] = u;
        dt[j] = v;
        mean += a[j] * u;
      }
      for (int j = 0; j < n; j++) {
        const float* __restrict__ x = X[j] + i * C;
        float* __restrict__ d = DX[j] + i * C;
        float dl = n > 1 ? a[j] * (da[j] - mean) : 0, p = dl * r[j], q = dl * dt[j] * r[j] * r[j] * r[j] / C, aj = a[j];
        for (int64_t c = 0; c < C; c++) {
          d[c] = aj * dm[c] + p * WM[c] - q * x[c];
          dwm[c] += p * x[c];
        }
      }
    }
  });
  Tensor s = dw.sum(0);
  out.push_back(s[0].clone());
  out.push_back(s[1].clone());
  return out;
}

// Output of a KDA head: y = rmsnorm(o) * w * sigmoid(gate). o [M,D] contiguous, gate [B*T rows of H*D, strided], w [D]
std::vector<Tensor> gatenorm_forward(Tensor o, Tensor gate, Tensor w, double eps) {
  int64_t rows = gate.size(0) * gate.size(1), H = gate.size(2) / D, T = gate.size(1), sb = gate.stride(0), st = gate.stride(1);
  o = o.contiguous();
  Tensor y = torch::empty({gate.size(0), T, H * D}, o.options()), rr = torch::empty({rows * H}, o.options());
  const float *O = o.data_ptr<float>(), *G = gate.data_ptr<float>(), *W = w.data_ptr<float>();
  float *Y = y.data_ptr<float>(), *R = rr.data_ptr<float>();
  at::parallel_for(0, rows, 64, [&](int64_t lo, int64_t hi) {
    for (int64_t i = lo; i < hi; i++)
      for (int64_t h = 0; h < H; h++) {
        const float* __restrict__ x = O + (i * H + h) * D;
        const float* __restrict__ g = G + (i / T) * sb + (i % T) * st + h * D;
        float* __restrict__ out = Y + (i * H + h) * D;
        float ss = 0;
        for (int c = 0; c < D; c++) ss += x[c] * x[c];
        float r = R[i * H + h] = 1.0f / std::sqrt(ss / D + (float)eps);
        for (int c = 0; c < D; c++) out[c] = x[c] * r * W[c] / (1.0f + std::exp(-g[c]));
      }
  });
  return {y, rr};
}

std::vector<Tensor> gatenorm_backward(Tensor o, Tensor gate, Tensor w, Tensor rr, Tensor gy) {
  int64_t rows = gate.size(0) * gate.size(1), H = gate.size(2) / D, T = gate.size(1), sb = gate.stride(0), st = gate.stride(1);
  gy = gy.contiguous();
  int nt = at::get_num_threads();
  Tensor dO = torch::empty_like(o), dG = torch::empty({gate.size(0), T, H * D}, o.options()), dw = torch::zeros({nt, D}, o.options());
  const float *O = o.data_ptr<float>(), *G = gate.data_ptr<float>(), *W = w.data_ptr<float>(), *R = rr.data_ptr<float>(), *GY = gy.data_ptr<float>();
  float *DO = dO.data_ptr<float>(), *DG = dG.data_ptr<float>(), *DW = dw.data_ptr<float>();
  at::parallel_for(0, rows, 64, [&](int64_t lo, int64_t hi) {
    float* __restrict__ dwp = DW + at::get_thread_num() * D;
    for (int64_t i = lo; i < hi; i++)
      for (int64_t h = 0; h < H; h++) {
        const float* __restrict__ x = O + (i * H + h) * D;
        const float* __restrict__ g = G + (i / T) * sb + (i % T) * st + h * D;
        const float* __restrict__ gyp = GY + (i * H + h) * D;
        float r = R[i * H + h], dt = 0, z[D];
        for (int c = 0; c < D; c++) {
          float s = 1.0f / (1.0f + std::exp(-g[c])), n = x[c] * r;
          DG[(i * H + h) * D + c] = gyp[c] * n * W[c] * s * (1.0f - s);
          dwp[c] += gyp[c] * n * s;
          z[c] = gyp[c] * W[c] * s;
          dt += z[c] * n;
        }
        dt /= D;
        for (int c = 0; c < D; c++) DO[(i * H + h) * D + c] = r * (z[c] - x[c] * r * dt);
      }
  });
  return {dO, dG, dw.sum(0)};
}

// SiTU: y = beta tanh(g / beta) sigmoid(g) * lb tanh(u / lb) for rows [g | u] of width 2C
static inline float fast_tanh(float x) { float e = std::exp(-2.0f * std::fabs(x)), t = (1.0f - e) / (1.0f + e); return x < 0 ? -t : t; }

Tensor situ_forward(Tensor gu, double beta, double lb) {
  gu = gu.contiguous();
  int64_t C = gu.size(-1) / 2, N = gu.numel() / (2 * C);
  auto sz = gu.sizes().vec();
  sz.back() = C;
  Tensor y = torch::empty(sz, gu.options());
  const float* X = gu.data_ptr<float>();
  float *Y = y.data_ptr<float>(), b = beta, l = lb;
  at::parallel_for(0, N, 64, [&](int64_t lo, int64_t hi) {
    for (int64_t i = lo; i < hi; i++) {
      const float *__restrict__ g = X + i * 2 * C, *__restrict__ u = g + C;
      float* __restrict__ o = Y + i * C;
      for (int64_t c = 0; c < C; c++) o[c] = b * fast_tanh(g[c] / b) / (1.0f + std::exp(-g[c])) * l * fast_tanh(u[c] / l);
    }
  });
  return y;
}

Tensor situ_backward(Tensor gu, Tensor gy, double beta, double lb) {
  gu = gu.contiguous();
  gy = gy.contiguous();
  int64_t C = gu.size(-1) / 2, N = gu.numel() / (2 * C);
  Tensor d = torch::empty_like(gu);
  const float *X = gu.data_ptr<float>(), *GY = gy.data_ptr<float>();
  float *DX = d.data_ptr<float>(), b = beta, l = lb;
  at::parallel_for(0, N, 64, [&](int64_t lo, int64_t hi) {
    for (int64_t i = lo; i < hi; i++) {
      const float *__restrict__ g = X + i * 2 * C, *__restrict__ u = g + C, *__restrict__ gy_ = GY + i * C;
      float *__restrict__ dg = DX + i * 2 * C, *__restrict__ du = dg + C;
      for (int64_t c = 0; c < C; c++) {
        float t = fast_tanh(g[c] / b), s = 1.0f / (1.0f + std::exp(-g[c])), w = fast_tanh(u[c] / l);
        dg[c] = gy_[c] * l * w * ((1.0f - t * t) * s + b * t * s * (1.0f - s));
        du[c] = gy_[c] * b * t * s * (1.0f - w * w);
      }
    }
  });
  return d;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("mixnorm_forward", &mixnorm_forward);
  m.def("mixnorm_backward", &mixnorm_backward);
  m.def("gatenorm_forward", &gatenorm_forward);
  m.def("gatenorm_backward", &gatenorm_backward);
  m.def("situ_forward", &situ_forward);
  m.def("situ_backward", &situ_backward);
  m.def("kda_forward", &kda_forward);
  m.def("kda_backward", &kda_backward);
  m.def("conv_forward", &conv_forward);
  m.def("conv_backward", &conv_backward);
  m.def("select_mask", &select_mask);
}
