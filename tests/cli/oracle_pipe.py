"""The pipe to text_oracle, and model directories made of the golden tokenizer files."""
import os
import shutil
import struct
import subprocess
import sys
import tempfile

GOLDEN = os.path.join(os.environ.get("NEAP_TEST_DATA", os.path.join(os.path.dirname(__file__), "..", "data")), "golden")
ORACLE = os.path.join(os.environ.get("NEAP_BUILD_DIR", "build"), "text_oracle")


class Neap:
    def __init__(self, directory):
        self.process = subprocess.Popen([ORACLE, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, kind, data):
        """The ids, or the reason as a string."""
        if isinstance(data, str):
            data = data.encode()
        self.process.stdin.write(kind.encode() + struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode("utf-8", "replace").rstrip("\n")
        if line.startswith("A"):
            return [int(x) for x in line.split()[1:]]
        if line.startswith("R "):
            return line[2:]
        sys.exit(f"FAIL: text_oracle ended on {data!r}")


def golden_directory(config, *more):
    """A temporary model directory; the caller removes it."""
    directory = tempfile.mkdtemp(prefix="neap-oracle-")
    shutil.copy(os.path.join(GOLDEN, "tokenizer", "tiktoken.model"), directory)
    shutil.copy(os.path.join(GOLDEN, "tokenizer", config), os.path.join(directory, "tokenizer_config.json"))
    for path in more:
        shutil.copy(path, directory)
    return directory


def skip(reason):
    print(f"SKIPPED: {reason}; nothing was compared")
    sys.exit(77)
