/* The chat page: conversations in this browser, answers from /v1/chat/completions of the server that sent the page.
 *
 * state.talks  [{id, title, messages: [{role, content, reasoning, calls, figures, error}]}]; state.now: the open one.
 * One answer streams at a time; it is drawn once per frame, less often when drawing takes long. Several tabs share what is
 * kept: each writes the conversation it changed, and takes over what the others write. */
"use strict";

const $ = id => document.getElementById(id);
const STORE = "neap.conversations", PREFS = "neap.settings", THEME = "neap.theme", KEY = "neap.key";
const HINT = "Message (Enter sends, Shift+Enter begins a new line)";
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const state = {talks: [], now: null, running: null, settings: {}, context: 0, hasKeys: false};

function load(name, fallback) {
  try { return JSON.parse(localStorage.getItem(name)) ?? fallback; } catch { return fallback; }
}
function save(name, value) {
  try { localStorage.setItem(name, JSON.stringify(value)); } catch (e) { problem("This browser cannot keep the conversation: " + e.message); }
}
function make(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k === "class") e.className = v; else if (k.startsWith("on")) e.addEventListener(k.slice(2), v); else e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}
function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text || "";
}
function announce(text) { $("announce").textContent = text; }
function headers() {
  const key = sessionStorage.getItem(KEY);
  return {"Content-Type": "application/json", ...(key ? {Authorization: "Bearer " + key} : {})};
}

/* ---- conversations ---- */

/* Writes this conversation and no other: another tab may have changed those. */
function keep(talk) {
  const kept = load(STORE, []), at = kept.findIndex(t => t.id === talk.id);
  if (!state.talks.some(t => t.id === talk.id)) return; /* deleted while its answer ended */
  if (at >= 0) talk.messages.length ? kept.splice(at, 1, talk) : kept.splice(at, 1);
  else if (talk.messages.length) kept.unshift(talk);
  save(STORE, kept);
}
/* Another tab has written. */
function takeOver(e) {
  if (e.key !== STORE) return;
  const now = state.now, kept = load(STORE, []), theirs = kept.find(t => t.id === now.id);
  state.talks = kept.map(t => t === theirs && state.running ? now : t);
  if (!theirs) state.talks.unshift(now);
  else if (!state.running && JSON.stringify(theirs) !== JSON.stringify(now)) { state.now = theirs; show(); return; }
  else state.talks[state.talks.findIndex(t => t.id === now.id)] = now;
  drawList();
}
function newTalk() {
  stop();
  state.now = {id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", messages: []};
  state.talks = [state.now, ...state.talks.filter(t => t.messages.length)];
  openSide(false);
  show();
  $("box").focus();
}
function openTalk(talk) {
  stop();
  state.now = talk;
  openSide(false);
  show();
}
function removeTalk(talk) {
  if (talk.messages.length && !confirm("Delete this conversation?")) return;
  if (state.now === talk) stop();
  state.talks = state.talks.filter(t => t !== talk);
  save(STORE, load(STORE, []).filter(t => t.id !== talk.id));
  if (state.now === talk) state.talks.length ? openTalk(state.talks[0]) : newTalk();
  else drawList();
}
function drawList() {
  $("list").replaceChildren(...state.talks.filter(t => t.messages.length || t === state.now).map(t => {
    const title = t.title || "New conversation";
    return make("li", t === state.now ? {"aria-current": "true"} : {},
      make("button", {type: "button", onclick: () => openTalk(t)}, title),
      make("button", {type: "button", "aria-label": "Delete " + title, onclick: () => removeTalk(t)}, "\u00d7"));
  }));
}

/* The list on a narrow screen. */
function openSide(is) {
  $("side").classList.toggle("open", is);
  $("menu").setAttribute("aria-expanded", String(is));
}

/* ---- messages ---- */

const NAMES = {user: "You", assistant: "Answer", tool: "Tool result", system: "System"};

function drawCalls(root, message) {
  root.replaceChildren(...(message.calls || []).map(c => {
    let text = c.arguments;
    try { text = JSON.stringify(JSON.parse(c.arguments), null, 2); } catch { /* still streaming, or not JSON: as it is */ }
    const area = make("textarea", {"aria-label": "Result of " + c.name, placeholder: "Result of the call, then Send result"});
    const isLast = state.now.messages.at(-1) === message && !state.running;
    return make("details", {open: ""}, make("summary", {}, "Call: " + c.name), make("pre", {}, make("code", {}, text)),
      ...(isLast ? [area, make("button", {type: "button", onclick: () => sendResult(c, area.value)}, "Send result")] : []));
  }));
}
function figuresText(f) {
  if (!f) return "";
  const parts = [];
  if (f.prompt !== undefined) parts.push(f.prompt + " prompt tokens" + (f.cached ? ", " + f.cached + " of them from the cache" : ""));
  if (f.tokens !== undefined) parts.push(f.tokens + (f.tokens === 1 ? " token" : " tokens") + (f.rate ? ", " + f.rate.toFixed(1) + " a second" : ""));
  return parts.join(" \u00b7 ");
}

/* A message's element with update() to redraw what may change while it streams. */
function drawMessage(message, index) {
  const body = make("div", {class: "body"}), root = make("article", {class: message.role}, make("h2", {}, NAMES[message.role] || message.role));
  const thought = make("div", {class: "thought"}), summary = make("summary", {}), fold = make("details", {}, summary, thought);
  const calls = make("div", {}), broken = make("p", {class: "broken"}), figures = make("span", {class: "figures"});
  const tools = make("div", {class: "tools"});
  const button = (text, label, fn) => tools.append(make("button", {type: "button", "aria-label": label, onclick: fn}, text));
  root.append(fold, body, calls, broken, tools);
  button("Copy", "Copy this message", e => Markdown.copy(e.target, message.content || ""));
  if (message.role === "user") button("Edit", "Edit this message and answer again", () => edit(root, body, message, index));
  if (message.role === "assistant") button("Regenerate", "Make this answer again", () => regenerate(index));
  button("Delete", "Delete this message and what follows", () => { stop(); state.now.messages.length = index; keep(state.now); show(); });
  tools.append(figures);
  root.update = () => {
    const run = state.running?.message === message ? state.running : null;
    fold.hidden = !message.reasoning;
    summary.textContent = run && !message.content ? "Reasoning \u2026" : "Reasoning";
    if (message.reasoning) thought.textContent = message.reasoning;
    if (message.role === "assistant") {
      body.classList.add("md");
      Markdown.render(body, message.content || "");
    } else {
      body.textContent = message.content || "";
    }
    drawCalls(calls, message);
    broken.hidden = !message.error;
    broken.textContent = message.error || "";
    figures.textContent = run?.note || figuresText(message.figures);
  };
  root.update();
  return root;
}
function show() {
  problem("");
  drawList();
  const talk = $("talk");
  talk.replaceChildren(...state.now.messages.map(drawMessage));
  if (!state.now.messages.length) talk.append(make("p", {class: "empty"}, "Ask something. Everything runs on this server."));
  talk.scrollTop = talk.scrollHeight;
  drawContext();
}
function drawContext() {
  const f = [...state.now.messages].reverse().map(m => m.figures).find(f => f && f.prompt !== undefined);
  const used = f ? f.prompt + (f.tokens || 0) : 0;
  $("context").replaceChildren(...(state.context ? [used + " / " + state.context, make("span", {class: "word"}, " tokens")] : []));
}
function edit(root, body, message, index) {
  if (root.querySelector("textarea")) return;
  const area = make("textarea", {"aria-label": "Edit the message"});
  area.value = message.content;
  const done = () => { stop(); state.now.messages.length = index; ask({role: "user", content: area.value}); };
  const row = make("div", {class: "tools"}, make("button", {type: "button", onclick: done}, "Send"),
    make("button", {type: "button", onclick: () => { row.remove(); area.remove(); body.hidden = false; }}, "Cancel"));
  area.addEventListener("keydown", e => {
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); done(); }
    if (e.key === "Escape") row.lastChild.click();
  });
  body.hidden = true;
  body.after(area, row);
  area.focus();
}
function regenerate(index) {
  stop();
  state.now.messages.length = index;
  answer();
}
function sendResult(call, text) {
  const waiting = state.now.messages.at(-1).calls.filter(c => c !== call && !c.done);
  call.done = true;
  state.now.messages.push({role: "tool", tool_call_id: call.id, content: text});
  keep(state.now);
  show();
  if (!waiting.length) answer();
}
function ask(message) {
  if (!message.content.trim()) return;
  if (!state.now.title) state.now.title = message.content.trim().replace(/\s+/g, " ").slice(0, 60);
  state.now.messages.push(message);
  answer();
}

/* ---- an answer ---- */

function requestBody() {
  const s = state.settings, messages = [];
  if (s.system) messages.push({role: "system", content: s.system});
  for (const m of state.now.messages) {
    if (m.role === "assistant") {
      const out = {role: "assistant", content: m.content || ""};
      if (m.reasoning) out.reasoning_content = m.reasoning;
      if (m.calls && m.calls.length) out.tool_calls = m.calls.map(c => ({id: c.id, type: "function", function: {name: c.name, arguments: c.arguments}}));
      messages.push(out);
    } else if (m.role === "tool") {
      messages.push({role: "tool", tool_call_id: m.tool_call_id, content: m.content});
    } else {
      messages.push({role: m.role, content: m.content});
    }
  }
  const body = {messages, stream: true, stream_options: {include_usage: true}, return_progress: true};
  for (const n of NUMBERS) if (s[n] !== undefined) body[n] = s[n];
  if (s.reasoning_effort) body.reasoning_effort = s.reasoning_effort;
  if (s.tools) body.tools = JSON.parse(s.tools);
  if (s.schema) body.response_format = {type: "json_schema", json_schema: {name: "answer", schema: JSON.parse(s.schema), strict: true}};
  return body;
}

/* Calls event(object) for each data line; returns when the stream ends. */
async function readEvents(response, event) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") event(JSON.parse(line.slice(6)));
    }
  }
}

function applyDelta(message, delta, run) {
  if (delta.content || delta.reasoning_content || delta.tool_calls) {
    run.pieces++;
    run.note = "";
    run.first ??= performance.now();
  }
  if (delta.content) message.content += delta.content;
  if (delta.reasoning_content) message.reasoning = (message.reasoning || "") + delta.reasoning_content;
  for (const c of delta.tool_calls || []) {
    message.calls ??= [];
    const call = message.calls[c.index] ??= {id: "", name: "", arguments: ""};
    if (c.id) call.id = c.id;
    if (c.function?.name) call.name = c.function.name;
    if (c.function?.arguments) call.arguments += c.function.arguments;
  }
}
function applyEvent(message, data, run) {
  if (data.error) throw new Error(data.error.message || "the server reported an error");
  const choice = data.choices?.[0], f = message.figures;
  if (choice?.delta) applyDelta(message, choice.delta, run);
  if (choice?.finish_reason === "length") message.error = "The answer was cut: the limit of tokens is reached.";
  if (data.prompt_progress) {
    const p = data.prompt_progress;
    f.prompt = p.total;
    f.cached = p.cache;
    if (p.processed < p.total) announce(run.note = "Reading the prompt: " + p.processed + " of " + p.total + " tokens");
  }
  if (data.usage) {
    f.prompt = data.usage.prompt_tokens;
    f.cached = data.usage.prompt_tokens_details?.cached_tokens || 0;
    f.tokens = data.usage.completion_tokens;
  } else {
    f.tokens = run.pieces;
  }
  const seconds = (performance.now() - run.first) / 1000;
  if (run.first && f.tokens > 1 && seconds > 0) f.rate = (f.tokens - 1) / seconds;
}

async function answer() {
  const talk = state.now, message = {role: "assistant", content: "", figures: {}};
  let body;
  try { body = requestBody(); } catch (e) { problem("Settings: " + e.message); return; }
  keep(talk);
  talk.messages.push(message);
  const run = state.running = {abort: new AbortController(), pieces: 0, first: undefined, talk, message, note: "Waiting \u2026"};
  show();
  busy(true);
  announce("The answer is being made");
  const root = $("talk").lastElementChild;
  let drawn = true, next = 0;
  const draw = time => {
    if (drawn) return;
    if (time < next) { requestAnimationFrame(draw); return; }
    drawn = true;
    if (state.now !== talk || !root.isConnected) return;
    const from = performance.now();
    const box = $("talk"), follows = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    root.update();
    drawContext();
    if (follows) box.scrollTop = box.scrollHeight;
    next = performance.now() + 4 * (performance.now() - from); /* a long answer leaves time for clicks */
  };
  try {
    const response = await fetch("/v1/chat/completions", {method: "POST", headers: headers(), body: JSON.stringify(body), signal: run.abort.signal});
    if (!response.ok) {
      const text = await response.text();
      let why = text;
      try { why = JSON.parse(text).error.message; } catch { /* not our JSON */ }
      if (response.status === 401) why += "\nSet the API key in Settings.";
      throw new Error(why || "status " + response.status);
    }
    await readEvents(response, data => {
      applyEvent(message, data, run);
      if (drawn) { drawn = false; requestAnimationFrame(draw); }
    });
    announce("The answer is finished");
  } catch (e) {
    if (e.name === "AbortError") {
      message.error = "Stopped.";
      announce("Stopped");
    } else {
      message.error = e instanceof TypeError ? "The server does not answer, or the connection broke (" + e.message + ")." : e.message;
      announce("The answer failed: " + message.error);
    }
  }
  if (state.running === run) state.running = null;
  if (!message.content && !message.reasoning && !message.calls && message.error && message.error !== "Stopped.") {
    if (talk.messages.at(-1) === message) talk.messages.pop(); /* nothing came: the question stays, the error is shown above */
    keep(talk);
    if (state.now === talk && !state.running) { show(); problem(message.error); }
  } else {
    keep(talk);
    drawn = false;
    draw(Infinity);
  }
  drawList();
  busy(state.running !== null);
}
function stop() {
  if (state.running) state.running.abort.abort();
  state.running = null;
  busy(false);
}
/* The page goes while an answer streams: what is there is kept. */
function leave() {
  if (!state.running) return;
  state.running.message.error = "The page was closed before the answer was finished.";
  keep(state.running.talk);
}
function busy(is) {
  $("stop").hidden = !is;
  $("send").hidden = is;
}

/* ---- settings ---- */

function openSettings() {
  const s = state.settings;
  for (const n of [...NUMBERS, "system", "reasoning_effort", "tools", "schema"]) $("set-" + n).value = s[n] ?? "";
  $("set-key").value = sessionStorage.getItem(KEY) || "";
  $("settings-problem").hidden = true;
  $("settings").showModal();
}
function saveSettings(e) {
  const s = {};
  const refuse = text => {
    e.preventDefault();
    $("settings-problem").textContent = text;
    $("settings-problem").hidden = false;
  };
  for (const n of ["system", "reasoning_effort", "tools", "schema"]) if ($("set-" + n).value.trim()) s[n] = $("set-" + n).value.trim();
  for (const n of NUMBERS) if ($("set-" + n).value !== "") s[n] = Number($("set-" + n).value);
  try {
    if (s.tools && !Array.isArray(JSON.parse(s.tools))) return refuse("Tools must be a JSON array.");
  } catch (x) { return refuse("Tools are not JSON: " + x.message); }
  try {
    if (s.schema) JSON.parse(s.schema);
  } catch (x) { return refuse("The schema is not JSON: " + x.message); }
  state.settings = s;
  save(PREFS, s);
  $("set-key").value ? sessionStorage.setItem(KEY, $("set-key").value) : sessionStorage.removeItem(KEY);
  describe();
}
function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
}
function turnTheme() {
  const dark = (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  setTheme(dark ? "light" : "dark");
  save(THEME, dark ? "light" : "dark");
}

/* Name and context of the model; asks again while it loads. */
async function describe() {
  try {
    const response = await fetch("/v1/models", {headers: headers()});
    if (response.status === 503) { $("model").textContent = "loading \u2026"; setTimeout(describe, 1000); return; }
    if (response.status === 401) { problem("This server wants an API key: Settings."); return; }
    const model = (await response.json()).data[0];
    problem("");
    $("model").textContent = model.id;
    document.title = model.id + " \u00b7 neap";
    state.context = model.max_model_len || model.meta?.n_ctx || 0;
    drawContext();
  } catch (e) { problem("The server does not answer: " + e.message); setTimeout(describe, 3000); }
}

/* ---- files ---- */

function exportTalks() {
  const a = make("a", {download: "neap-conversations.json"});
  a.href = URL.createObjectURL(new Blob([JSON.stringify(state.talks, null, 1)], {type: "application/json"}));
  a.click();
  setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}
async function importTalks() {
  const file = $("import-file").files[0];
  $("import-file").value = "";
  try {
    const talks = JSON.parse(await file.text());
    const fine = t => typeof t.id === "string" && typeof t.title === "string" && Array.isArray(t.messages) &&
      t.messages.every(m => typeof m.role === "string" && typeof m.content === "string");
    if (!Array.isArray(talks) || !talks.every(fine)) throw new Error("it does not hold conversations of this page");
    const known = new Set(state.talks.map(t => t.id));
    const fresh = talks.filter(t => !known.has(t.id));
    state.talks.push(...fresh);
    save(STORE, [...load(STORE, []), ...fresh]);
    drawList();
  } catch (e) { problem(file.name + " was not imported: " + e.message); }
}

/* ---- start ---- */

function fit() {
  const box = $("box");
  box.style.height = "auto";
  box.style.height = box.scrollHeight + 2 + "px";
}
function submit(e) {
  e.preventDefault();
  const text = $("box").value;
  if (state.running || !text.trim()) return;
  $("box").value = "";
  fit();
  ask({role: "user", content: text});
}
function keys(e) {
  if (e.key === "Escape" && $("side").classList.contains("open")) { openSide(false); $("menu").focus(); return; }
  if (e.key === "Escape" && state.running && !$("settings").open) stop();
  if (e.key.toLowerCase() === "o" && e.ctrlKey && e.shiftKey) { e.preventDefault(); newTalk(); }
}
function boxKeys(e) {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) submit(e);
  if (e.key === "ArrowUp" && !$("box").value) {
    const mine = document.querySelectorAll("article.user [aria-label^='Edit']");
    if (mine.length) { e.preventDefault(); mine[mine.length - 1].click(); }
  }
}
function begin() {
  state.settings = load(PREFS, {});
  state.talks = load(STORE, []);
  setTheme(load(THEME, ""));
  state.talks.length ? openTalk(state.talks[0]) : newTalk();
  $("box").focus();
  const narrow = matchMedia("(max-width: 760px)"), hint = () => { $("box").placeholder = narrow.matches ? "Message" : HINT; };
  hint();
  narrow.addEventListener("change", hint);
  addEventListener("storage", takeOver);
  addEventListener("pagehide", leave);
  $("form").addEventListener("submit", submit);
  $("box").addEventListener("keydown", boxKeys);
  $("box").addEventListener("input", fit);
  document.addEventListener("keydown", keys);
  $("stop").addEventListener("click", stop);
  $("new").addEventListener("click", newTalk);
  $("theme").addEventListener("click", turnTheme);
  $("open-settings").addEventListener("click", openSettings);
  $("settings-save").addEventListener("click", saveSettings);
  $("settings-cancel").addEventListener("click", () => $("settings").close());
  $("export").addEventListener("click", exportTalks);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", importTalks);
  $("menu").addEventListener("click", e => {
    e.stopPropagation();
    openSide(!$("side").classList.contains("open"));
    if ($("side").classList.contains("open")) $("new").focus();
  });
  $("main").addEventListener("click", () => openSide(false));
  describe();
}
document.addEventListener("DOMContentLoaded", begin);
