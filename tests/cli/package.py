#!/usr/bin/env python3
"""The Debian package: it is made, holds what it should and nothing else, its program runs, lintian (where it is there) finds no
error; the unit file is well-formed and closed; settings and flags that the shipped files use exist."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from cli_shared import check, finish, run

BUILD, PACKAGING = os.environ["NEAP_BUILD_DIR"], os.path.join(os.environ["NEAP_SOURCE_DIR"], "packaging")


def read(name):
    with open(os.path.join(PACKAGING, name), encoding="utf-8") as f:
        return f.read()


# the example settings are accepted as they are; with every comment that holds a setting taken away, too
def limits(text):
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as f:
        f.write(text)
        f.flush()
        return run("serve", "--config", f.name, "--show-limits")


ini = read("neap.ini")
check(limits(ini).code == 0, limits(ini))
more = re.sub(r"^# ?(?=[a-z-]+ = |\[[a-z]+\]$)", "", ini, flags=re.M)
check(more != ini and limits(more).code == 0, limits(more))

# the unit: no privileges, and time enough to drain
unit = read("neap.service")
for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "MemoryDenyWriteExecute=yes", "CapabilityBoundingSet=",
             "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX", "SystemCallFilter=@system-service", "StateDirectory=neap",
             "CacheDirectory=neap", "ExecReload=/bin/kill -HUP $MAINPID"):
    check(line in unit.splitlines(), line)
stop = int(re.search(r"^TimeoutStopSec=(\d+)$", unit, re.M).group(1))
drain = float(re.search(r"^drain-timeout +(\S+)", run("serve", "--show-limits").out.decode(), re.M).group(1))
check(stop > drain + 5, stop, drain)
if shutil.which("systemd-analyze"):
    p = subprocess.run(["systemd-analyze", "security", "--offline=true", os.path.join(PACKAGING, "neap.service")],
                       capture_output=True, text=True)
    score = re.search(r"exposure level for neap.service: ([\d.]+)", p.stdout)
    check(not score or float(score.group(1)) < 2.0, score and score.group(0))

# the Dockerfile: an account without privileges, flags and variables that exist
docker, known = read("Dockerfile"), run("man").out.decode().replace("\\-", "-")
check("\nUSER 10001" in docker and "HEALTHCHECK" in docker and docker.count("FROM debian:12-slim") == 2, "Dockerfile")
for name in set(re.findall(r"NEAP_[A-Z_]+", docker)) - {"NEAP_TESTS", "NEAP_"}:
    check(name in known, "Dockerfile", name)

if not (shutil.which("cpack") and shutil.which("dpkg-deb") and shutil.which("gzip")):
    print("cpack or dpkg-deb is not here: no package made")
    finish()
if not os.path.exists(os.path.join(BUILD, "CPackConfig.cmake")):
    sys.exit(77)
with tempfile.TemporaryDirectory() as work:
    p = subprocess.run(["cpack", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-G", "DEB", "-B", work],
                       capture_output=True, text=True)
    debs = [n for n in os.listdir(work) if n.endswith(".deb")]
    if not check(p.returncode == 0 and len(debs) == 1, p.stdout, p.stderr):
        finish()
    deb = os.path.join(work, debs[0])
    check(re.fullmatch(r"neap_\d+\.\d+\.\d+_[a-z0-9]+\.deb", debs[0]), debs)
    root = os.path.join(work, "root")
    subprocess.run(["dpkg-deb", "-R", deb, root], check=True)
    found = {os.path.relpath(os.path.join(d, n), root) for d, _, names in os.walk(root) for n in names}
    want = {"DEBIAN/control", "DEBIAN/conffiles", "DEBIAN/md5sums", "DEBIAN/postinst", "DEBIAN/prerm", "DEBIAN/postrm",
            "usr/bin/neap", "etc/neap/neap.ini", "lib/systemd/system/neap.service", "usr/share/man/man1/neap.1.gz",
            "usr/share/bash-completion/completions/neap", "usr/share/doc/neap/copyright", "usr/share/doc/neap/changelog.gz",
            *(f"usr/share/doc/neap/examples/{n}" for n in ("grafana.json", "prometheus.yml", "alerts.yml"))}
    check(found == want, found ^ want)
    with open(os.path.join(root, "DEBIAN/control"), encoding="utf-8") as f:
        control = f.read()
    check(all(x in control for x in ("libjansson4", "libevent-2.1", "libpcre2-8-0", "Package: neap\n")), control)
    with open(os.path.join(root, "DEBIAN/conffiles"), encoding="utf-8") as f:
        check(f.read() == "/etc/neap/neap.ini\n")
    for script in ("postinst", "prerm", "postrm"):
        check(subprocess.run(["sh", "-n", os.path.join(root, "DEBIAN", script)]).returncode == 0, script)
    p = subprocess.run([os.path.join(root, "usr/bin/neap"), "version"], capture_output=True)
    check(p.returncode == 0 and p.stdout == run("version").out, p)
    if shutil.which("lintian") and not os.environ.get("NEAP_SANITIZE"):
        p = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", deb], capture_output=True, text=True)
        check(p.returncode == 0, p.stdout, p.stderr)
    else:
        print("lintian is not here: the package is not judged")
finish()
