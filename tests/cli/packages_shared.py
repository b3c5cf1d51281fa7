"""Python packages that only tests need (not a test): from the interpreter when they are there, else from PyPI into a
virtual environment in the build folder. Without a network the test that wants them is skipped."""
import fcntl
import glob
import importlib
import os
import subprocess
import sys
import tempfile

BUILD = os.environ.get("NEAP_BUILD_DIR") or os.path.join(tempfile.gettempdir(), "neap-tests")


def want(module, package):
    """The module, or None when it cannot be had. package: as pip names it with its version, more of them after blanks; a new
    one may find what is no change of ours, so it comes with a change of this line."""
    try:
        return importlib.import_module(module)
    except ImportError:
        pass
    os.makedirs(BUILD, exist_ok=True)
    folder = os.path.join(BUILD, "python-" + module)
    done = os.path.join(folder, "done")  # an installation that was interrupted is made again
    try:
        with open(folder + ".lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(done):
                subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True, capture_output=True, timeout=120)
                subprocess.run([os.path.join(folder, "bin", "pip"), "install", "-q", "--disable-pip-version-check",
                                "--retries", "1", "--timeout", "10", *package.split()], check=True, capture_output=True, timeout=200)
                with open(done, "w", encoding="ascii"):
                    pass
        # before the interpreter's own packages, which may be older than what these need
        sys.path[1:1] = glob.glob(os.path.join(folder, "lib", "python3*", "site-packages"))
        importlib.invalidate_caches()
        return importlib.import_module(module)
    except (OSError, subprocess.SubprocessError, ImportError):
        return None


def need(module, package):
    """The same, or the end of the test: skipped."""
    found = want(module, package)
    if found is None:
        print(f"skipped: the Python package {package} is not there and cannot be installed")
        sys.exit(77)
    return found
