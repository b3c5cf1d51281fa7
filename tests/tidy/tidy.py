#!/usr/bin/env python3
"""House rules as tests.

    tidy.py PROGRAM CHECK [CHECK...]      from ctest; the environment names source and build folder
    NEAP_SOURCE_DIR=. tidy.py - layers    by hand

Each check prints one line per violation (file:line: rule) and the process ends with 1 if there was any.
PROGRAM is only there because every script test gets it. Exit code 77 = skipped (a tool is missing).
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.environ.get("NEAP_SOURCE_DIR") or os.path.join(os.path.dirname(__file__), "..", ".."))
BUILD = os.environ.get("NEAP_BUILD_DIR", os.path.join(ROOT, "build"))
CC = os.environ.get("CC", "cc")

# Who may include whom; a room may also include itself, and everybody neap.h.
MORE = {"models": ("kernels/cpu.h",)}  # the mask of instruction sets is checked when a model is opened
# `neap doctor` compares all kernels of this machine, and the code that can lies with the tests.
DOCTOR = ("apps/doctor_machine.c", "kcheck/check_all.h")
LAYERS = {
    "base": "",
    "tensor": "base",
    "format": "tensor base",
    "kernels": "tensor base",
    "runtime": "tensor base",
    "cache": "tensor base",
    "layers": "kernels runtime cache tensor base",
    "models": "layers format tensor base",
    "engine": "models layers cache runtime kernels format tensor base",
}
# Libraries that stand behind one file or folder, so that they can be changed there.
LIBRARIES = {
    "jansson.h": ("src/format/json.c", "apps/server/"),
    "event2/": "apps/server/",
    "openssl/": "apps/server/",
    "pcre2.h": "src/format/",
    "histedit.h": "apps/",
    "editline/readline.h": "apps/",
    "immintrin.h": "src/kernels/x86/",
    "cpuid.h": "src/kernels/cpu.c",
    "cmocka.h": "tests/",
}
LINES_MAX, COLUMNS_MAX = 1500, 120
EVERYWHERE = (r"\b(abort|exit|_exit|strcpy|strcat|sprintf|vsprintf|gets|alloca|strtok|atoi|atof|system|popen|tmpnam)"
              r"\s*\(")
MEMORY = r"\b(malloc|calloc|realloc|aligned_alloc|posix_memalign|free|strdup|strndup|asprintf|mmap|munmap)\s*\("
PRINTING = r"\b(printf|fprintf|vprintf|vfprintf|puts|fputs|putchar|perror)\s*\(|\b(stdout|stderr)\b"
# What a file may do although its room may not.
ALLOWED = {"src/base/arena.c": MEMORY, "src/base/log.c": PRINTING}


def files(*suffixes, under=("src", "include", "apps", "tests", "tools", "docs", "cmake", ".ci")):
    """Relative paths of our own files."""
    found = []
    for top in under:
        for folder, folders, names in os.walk(os.path.join(ROOT, top)):
            folders[:] = sorted(d for d in folders if d not in ("__pycache__", "golden-large", "corpus", ".venv"))
            found += [os.path.relpath(os.path.join(folder, n), ROOT) for n in sorted(names) if n.endswith(suffixes)]
    return found


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return f.read()


def code_of(text):
    """The text with comments and the insides of strings blanked; line numbers stay."""
    def blank(match):
        s = match.group(0)
        return ("" if s[0] == "/" else s[0] + s[-1]) + "\n" * s.count("\n")
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def includes(path):
    for i, line in enumerate(read(path).splitlines(), 1):
        m = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if m:
            yield i, m.group(1) == '"', m.group(2)


def check_layers():
    """Arrows between the rooms point down only."""
    for path in files(".c", ".h", under=("src", "apps", "include")):
        parts = path.split(os.sep)
        room = parts[1] if parts[0] == "src" else parts[0]
        for line, quoted, target in includes(path):
            owner = LIBRARIES.get(target) or LIBRARIES.get(os.path.dirname(target) + "/")
            if owner and not path.startswith(owner):
                yield f"{path}:{line}: <{target}> belongs to {owner}"
            if not quoted or target == "neap.h":
                continue
            if room == "include":
                yield f"{path}:{line}: the public header includes {target}"
            elif room == "apps":
                near = os.path.normpath(os.path.join(ROOT, os.path.dirname(path), target))
                if not (near.startswith(os.path.join(ROOT, "apps")) and os.path.exists(near)) and (path, target) != DOCTOR:
                    yield f"{path}:{line}: apps see neap.h and themselves, not {target}"
            elif "/" not in target:
                yield f'{path}:{line}: write "{room}/{target}", not "{target}"'
            else:
                other = target.split("/")[0]
                if other != room and other not in LAYERS.get(room, "").split() and target not in MORE.get(room, ()):
                    yield f"{path}:{line}: {room} may not include {other} ({target})"
        if parts[0] == "src" and room not in LAYERS:
            yield f"{path}:1: a room that the table does not know"


def check_symbols():
    """Static archives have no private names: every symbol that leaves its file starts with neap_."""
    library = os.path.join(BUILD, "libneap.a")
    out = subprocess.run(["nm", "-g", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1] for line in out.splitlines() if len(line.split()) == 3]
    if len(names) < 20:
        yield f"{library}: only {len(names)} symbols, is it the library?"
    for name in names:
        if not name.startswith(("neap_", "__odr_asan", "__asan", "__tsan", "__sancov", "__start_", "__stop_")):
            yield f"{library}: {name} lacks the prefix neap_"


def compiles(args, text, suffix):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "probe" + suffix)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        r = subprocess.run([CC, *args, "-fsyntax-only", path], capture_output=True, text=True)
        return None if r.returncode == 0 else r.stderr.strip().splitlines()[:1]


def check_headers():
    """Each header compiles alone; the public one also as strict C99 and as C++."""
    public = [f"-I{ROOT}/include", "-Wall", "-Wextra", "-Werror", "-pedantic-errors"]
    use = '#include "neap.h"\n%sint main(void) { return neap_version() == 0; }\n'
    for args, suffix in ((["-std=c99"], ".c"), (["-std=c17"], ".c"), (["-x", "c++", "-std=c++11"], ".cc")):
        error = compiles([*args, *public], use % "", suffix)
        if error:
            yield f"include/neap.h: {' '.join(args)}: {error}"
    inside = ["-std=c17", "-D_GNU_SOURCE", f"-I{ROOT}/src", f"-I{ROOT}/include", f"-I{ROOT}/tests", "-Wall", "-Wextra",
              "-Werror", "-DNEAP_SIMD=1", "-mavx2", "-mfma"]
    if os.uname().machine != "x86_64":
        inside = inside[:-2]
    for path in files(".h", under=("src", "apps")):
        error = compiles(inside, f'#include "{ROOT}/{path}"\nextern int probe;\n', ".c")
        if error:
            yield f"{path}: does not compile alone: {error}"
        for i, line in enumerate(code_of(read(path)).splitlines(), 1):
            if re.search(r"\binline\b", line) and "static" not in line:
                yield f"{path}:{i}: a function in a header must be static inline"


def check_limits():
    """Length of files and lines, tabs, space at line ends."""
    for path in files(".c", ".h", ".py", ".sh", ".cmake"):
        if path.startswith("tools/") and path.endswith(".py"):
            continue
        columns_max = COLUMNS_MAX + 20 if path.endswith(".py") else COLUMNS_MAX
        lines = read(path).splitlines()
        if len(lines) > LINES_MAX:
            yield f"{path}: {len(lines)} lines, more than {LINES_MAX}: it holds more than one idea"
        for i, line in enumerate(lines, 1):
            if len(line) > columns_max:
                yield f"{path}:{i}: {len(line)} columns, more than {columns_max}"
            if line != line.rstrip() or "\t" in line:
                yield f"{path}:{i}: tab or space at the end of the line"
        if path.endswith(".c") and path.startswith(("src", "apps")) and not (lines and lines[0].startswith("/*")):
            yield f"{path}:1: a file opens with a comment that says its idea"
    for path in ("CMakeLists.txt", "cmake/tests.cmake"):
        if read(path).count("\n") > 300:
            yield f"{path}: more than 300 lines"
    for path in files("README.md", under=("src", "apps", "tests")):
        if not path.startswith("tests/data") and read(path).count("\n") > 60:
            yield f"{path}: a room's README has at most 60 lines"


def check_calls():
    """Memory comes from base/arena.c, text goes out through base/log.c, nothing ends the process."""
    for path in files(".c", ".h", under=("src",)):
        for i, line in enumerate(code_of(read(path)).splitlines(), 1):
            for pattern in (EVERYWHERE, MEMORY, PRINTING):
                m = re.search(pattern, line)
                if m and ALLOWED.get(path) != pattern:
                    yield f"{path}:{i}: banned here: {m.group(0).strip()}"
            if re.search(r"\bgetenv\b", line):
                yield f"{path}:{i}: the library reads no environment variables"
            if re.search(r"-ffast-math|__attribute__\s*\(\(.*optimize|#\s*pragma\s+GCC\s+(optimize|target)", line):
                yield f"{path}:{i}: flags belong into CMakeLists.txt"
    for path in files(".c", ".h", under=("apps",)):
        for i, line in enumerate(code_of(read(path)).splitlines(), 1):
            m = re.search(r"\b(abort|strcpy|strcat|sprintf|vsprintf|gets|alloca|atoi|atof|system|popen)\s*\(", line)
            if m:
                yield f"{path}:{i}: banned here: {m.group(0).strip()}"


def check_names():
    """Source file names are unique in the tree; types have no _t; work left open names its issue."""
    seen = {}
    for path in files(".c", ".h", under=("src", "apps", "tests", "include")):
        name = os.path.basename(path)
        if name in seen:
            yield f"{path}: same name as {seen[name]}"
        seen[name] = path
        for i, line in enumerate(code_of(read(path)).splitlines(), 1):
            if re.search(r"\b(typedef\b.*|struct |enum |union )neap_\w+_t\b", line):
                yield f"{path}:{i}: types have no _t"
    open_work = "TO" + "DO|FIX" + "ME|XX" + "X"
    top = [n for n in os.listdir(ROOT) if n.endswith((".md", ".txt", ".sh")) or n == "Makefile"]
    for path in top + files(".c", ".h", ".py", ".sh", ".md", "run", ".cmake"):
        for i, line in enumerate(read(path).splitlines(), 1):
            if re.search(rf"\b({open_work})\b(?!\s*\(?#\d+)", line):
                yield f"{path}:{i}: open work without an issue number"
            if re.search(r"(?<![\w./$}])/(work|home|root|Users)/\w", line) and "tidy.py" not in path:
                yield f"{path}:{i}: a path of somebody's own machine"


def check_listed():
    """Every .c file is in the build; every header is included by somebody."""
    build = read("CMakeLists.txt") + read("cmake/tests.cmake")
    listed = set(re.findall(r"[\w/]+\.c\b", build))
    names = {os.path.basename(p) for p in listed}
    for family, variants in re.findall(r"^neap_kernel\((\w+) ([^)]*)\)", build, flags=re.M):
        names |= {f"{family}_{v}.c" for v in variants.split()}
    several = re.findall(r"neap_tests\((unit|golden|fuzz) ([^)]*)\)", build)
    for kind, tests in re.findall(r"neap_(unit|golden|fuzz)_test\((\w+)", build) + several:
        names |= {("fuzz_" if kind == "fuzz" else "test_") + test + ".c" for test in tests.split()}
    scripts_listed = " ".join(re.findall(r"foreach\(script ([^)]*)\)", build)).split()
    build += " ".join(f"tests/cli/{name}.py" for name in scripts_listed)
    for path in files(".c", under=("src", "apps", "tests")):
        if os.path.basename(path) not in names:
            yield f"{path}: not in CMakeLists.txt or cmake/tests.cmake"
    scripts = files(".py", ".sh", under=("tests/cli", "tests/golden", "tests/tidy"))
    imports = {m for path in scripts for m in re.findall(r"^(?:import|from) (\w+)", read(path), flags=re.M)}
    for path in scripts:
        if path not in build and os.path.basename(path)[:-3] not in imports:
            yield f"{path}: neither a test in cmake/tests.cmake nor imported by one"
    used = set()
    for path in files(".c", ".h", ".cc", under=("src", "apps", "tests", "include")):
        used |= {os.path.basename(t) for _, quoted, t in includes(path) if quoted}
    for path in files(".h", under=("src", "apps", "tests")):
        if os.path.basename(path) not in used:
            yield f"{path}: nobody includes it"


def check_documents():
    """Relative links in our documents lead somewhere."""
    top = [n for n in os.listdir(ROOT) if n.endswith(".md")]
    for path in top + files(".md"):
        for i, line in enumerate(read(path).splitlines(), 1):
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", line):
                if "://" not in target and not os.path.exists(os.path.join(ROOT, os.path.dirname(path), target)):
                    yield f"{path}:{i}: {target} does not exist"


def check_format():
    """clang-format leaves every source file as it is."""
    try:
        version = subprocess.run(["clang-format", "--version"], capture_output=True, text=True).stdout
    except OSError:
        version = ""
    if "version 14" not in version:
        print("clang-format 14 is not here: format not checked")
        sys.exit(77)
    paths = files(".c", ".h")
    for start in range(0, len(paths), 50):
        r = subprocess.run(["clang-format", "--dry-run", *paths[start:start + 50]], cwd=ROOT, capture_output=True, text=True)
        for line in r.stderr.splitlines():
            if "[-Wclang-format-violations]" in line:
                yield f"{line.split(': ')[0]}: run `make fmt`"


def main():
    failures = 0
    for name in sys.argv[2:]:
        for text in globals()["check_" + name]():
            print(text)
            failures += 1
    sys.exit(1 if failures else 0)


main()
