"""Run scripts as fresh processes that have NeMo imported already, one for each line of JSON on the standard input.

Whoever starts many scripts pays for the import once. Each script runs in a child made by `fork`, which then goes on as
an ordinary interpreter: its own arguments, directory and environment, its own end. Nothing but NeMo's modules is
loaded before, and they are as a script that imports them in its first lines finds them.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import sys

for module in ("lightning.pytorch", "nemo.core.config", "nemo.utils.exp_manager"):
    importlib.import_module(module)
gc.freeze()  # or every child would copy the memory of all that is loaded, when it collects
print("ready", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = [request["script"], *request["arguments"]]
    sys.path[0] = os.path.dirname(request["script"])
    runpy.run_path(request["script"], run_name="__main__")
    break
