"""A team as a command: standard library alone, as in an environment that knows nothing of MARFT."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path


def ask(role: str, text: str) -> str:
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    url = os.environ[f"MARFT_{role.upper()}_URL"] + "/chat/completions"
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def main(deed: str) -> None:
    task = json.loads(sys.stdin.readline())
    if deed == "dies":
        ask("a", task["prompt"])
        os.kill(os.getpid(), signal.SIGKILL)
    if deed in ("hangs", "leaves"):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(sys.argv[2]).write_text(str(left.pid), encoding="utf-8")
    if deed == "hangs":
        time.sleep(600)
    if deed == "complains":
        sys.exit("it hurts")
    print("Let me see.")
    said = ask("a", task["prompt"])
    if deed == "babbles":
        print("no JSON")
    elif deed == "grades":
        print(json.dumps({"answer": said, "reward": float(task["data"].get("worth", 0.5))}))
    else:
        print(json.dumps({"answer": f"{said} {os.environ.get('OPENAI_BASE_URL', '')[:7]}".strip()}))


if __name__ == "__main__":
    main(sys.argv[1])
