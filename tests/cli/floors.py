#!/usr/bin/env python3
"""kcheck --floors: held, missed and unknown cases, malformed files, and that the files of tests/kcheck/floors can be
read. The cases are tiny; how fast this machine is does not matter."""
import glob
import os
import subprocess
import tempfile

from cli_shared import check, finish

KCHECK = os.path.join(os.environ["NEAP_BUILD_DIR"], "kcheck")
FLOORS = os.path.join(os.environ["NEAP_SOURCE_DIR"], "tests/kcheck/floors")


def kcheck(path, *args):
    r = subprocess.run([KCHECK, "--bench", f"--floors={path}", "--only=rope", "--cpu=scalar", *args],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return r.returncode, r.stdout, r.stderr


with tempfile.TemporaryDirectory() as work:
    path = os.path.join(work, "f.txt")

    def floors(text):
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return kcheck(path)

    held = "cycles 1e9 rope scalar | rope 64\n"
    code, out, err = floors("# comment\n\n" + held + "ns 1e9 rope scalar | rope 64   # held too\n")
    check(code == 0 and out.count("  ok\n") == 2 and "again" not in out, out, err)
    code, out, err = floors(held + "cycles 1e-9 rope scalar | rope 64\n")
    check(code == 1 and out.count("  ok\n") == 1 and out.count("MISSED\n") == 1, out, err)
    check(out.count("1 floors missed, again") == 3, out)
    code, out, err = floors("limit 0.1 rope scalar | rope 65\n")
    check(code == 1 and "NO SUCH CASE" in out, out, err)
    code, out, err = floors("faster 0.5 rope scalar | rope 64 | rope 64\n")
    check(code == 0 and "1.00  ok" in out, out, err)
    code, out, err = floors("faster 0.5 rope scalar | rope 64 | rope 65\n")
    check(code == 1 and "NO SUCH CASE" in out, out, err)
    code, out, err = floors("cycles 1e-9 norm scalar | rmsnorm 7168\n")
    check(code == 0 and "rmsnorm" not in out, "left out by --only", out, err)
    for bad in ("limit 0.5 rope scalar rope 64", "limit rope scalar | rope 64", "limit 0 rope scalar | rope 64",
                "limit 0.5 rope scalar more | rope 64", "least 0.5 rope scalar | rope 64", "limit 0.5 rope scalar |",
                "limit 0.5 rope scalar | a | b", "faster 2 rope scalar | a", "limit 0.5 rope scalar | " + 70 * "a"):
        code, out, err = floors(held + bad + "\n")
        check(code == 2 and err.startswith(f"kcheck: {path}:2: ") and err.count("\n") == 1, bad, out, err)
    check(kcheck(os.path.join(work, "none"))[0] == 2)
    check(kcheck(work)[0] == 2, "a directory without floors for this level")
    r = subprocess.run([KCHECK, f"--floors={path}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    check(r.returncode == 2, "--floors without --bench")
    shipped = sorted(glob.glob(os.path.join(FLOORS, "*.txt")))
    check(len(shipped) >= 4, shipped)
    for path in shipped:
        code, out, err = kcheck(path)
        check(code == 0 and err == "", path, out, err)
finish()
