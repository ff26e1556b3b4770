"""Asks a served model a question over HTTP and prints the streamed answer, TTFT and tokens/s. Standard library only."""

import json
import sys
import time
import urllib.request

url, question = sys.argv[1:]
body = {
    "messages": [{"role": "user", "content": question}],
    "max_tokens": 200,
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
}
request = urllib.request.Request(
    f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
)
print(f"\n> {question}\n")
started = first = time.perf_counter()
usage = {}
with urllib.request.urlopen(request) as response:
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            if first == started:
                first = time.perf_counter()
            print(choice["delta"].get("content") or "", end="", flush=True)
ended = time.perf_counter()
tokens = usage["completion_tokens"]
print(
    f"\n\nTTFT {(first - started) * 1e3:.0f} ms, {tokens} tokens, "
    f"{(tokens - 1) / max(ended - first, 1e-9):.1f} tokens/s after the first, over {url}"
)
