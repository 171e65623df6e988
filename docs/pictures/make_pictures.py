"""Make the pictures of the documentation from real trainings: `make pictures`.

Stock NeMo trains three times in one directory, and the immutable layout four times in another, the third time with a
rank that fails. What is then on disk, what the commands print and what the report looks like becomes the pictures. The
name of the host and the place are replaced; all the rest is as it was.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

PICTURES: Final = Path(__file__).parent
DEMO: Final = PICTURES.parents[1] / "immutable_logs" / "demo"
NAME: Final = "my_exp"
FIRST_LINE: Final = "        loss = self._loss(batch)\n"
FAILURE: Final = f"""{FIRST_LINE}\
        if self.global_rank == 2 and self.global_step == 50:
            raise ValueError("the loss is not a number")
"""
SCALE: Final = 0.62
"""Of the size in which rich draws a terminal: the letters are then as large as those of a page."""


def main() -> None:
    """Train, unless the trainings are there, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", nargs="?", type=Path, help="where the trainings are kept, or were kept before")
    directory = parser.parse_args().directory
    with tempfile.TemporaryDirectory() as scratch:
        place = (directory or Path(scratch)).resolve()
        train_stock(place)
        train_immutable(place)
        rename_host(place / "immutable" / NAME / "runs")
        draw(place)


def train_stock(place: Path) -> None:
    """Train three times in `stock/`."""
    if not (place / "stock").exists():
        for steps in (20, 40, 60):
            train(place, "exp_manager.exp_dir=stock", f"trainer.max_steps={steps}")


def train_immutable(place: Path) -> None:
    """Train four times in `immutable/`, the third time with a failure on rank 2."""
    if not (place / "immutable").exists():
        arguments = ("exp_manager.exp_dir=immutable", "exp_manager.log_layout=immutable", "trainer.devices=3")
        train(place, *arguments, "trainer.max_steps=20")
        train(place, *arguments, "trainer.max_steps=40")
        train(place, *arguments, "trainer.max_steps=60", fails=True)
        train(place, *arguments, "trainer.max_steps=60")


def train(place: Path, *arguments: str, fails: bool = False) -> None:
    """Run the training of the demonstration, at `place`."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copy(DEMO / "train.yaml", place)
    script = (DEMO / "train.py").read_text(encoding="utf-8")
    if FIRST_LINE not in script:
        raise SystemExit(f"{DEMO / 'train.py'} no longer has the line before which rank 2 is to fail")
    (place / "train.py").write_text(script.replace(FIRST_LINE, FAILURE) if fails else script, encoding="utf-8")
    command = [sys.executable, "train.py", f"name={NAME}", *arguments]
    print(" ".join(["python", *command[1:]]), file=sys.stderr)
    finished = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if (finished.returncode != 0) is not fails:
        raise SystemExit(f"{finished.stdout}{finished.stderr}The training ended with {finished.returncode}")


def rename_host(runs: Path) -> None:
    """Give this host another name in the records, before anything is laid out in columns."""
    for path in [runs / "manifest.jsonl", *runs.glob("*/**/*.json")]:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f'"{socket.gethostname()}"', '"node1"'), encoding="utf-8")


def draw(place: Path) -> None:
    """Draw everything from the trainings at `place`."""
    stock, immutable = place / "stock" / NAME, place / "immutable" / NAME
    runs = sorted(path.name for path in (immutable / "runs").glob("[0-9]*"))
    draw_tree(
        "tree-stock",
        "stock NeMo, three launches",
        tree(stock, {"run_0", "run_1"}, {"run_0": "moved at launch 2", "run_1": "moved at launch 3"}),
    )
    draw_tree(
        "tree-immutable",
        "log_layout=immutable, four launches",
        tree(immutable, {"runs", runs[-1]}, {runs[-2]: "failed", "checkpoints": "shared, as before"}),
    )
    draw_command("ls", immutable, "immutable-logs", "ls", width=104)
    draw_command("errors", immutable, "immutable-logs", "logs", "latest~1", "--errors", width=104)
    draw_report(immutable)


def tree(directory: Path, opened: set[str], notes: Mapping[str, str], indent: str = "") -> Text:
    """List a directory, with what is in the `opened` ones and a note beside some."""
    text = Text()
    if not indent:
        text.append(f"{directory.name}/\n", style="bold")
    entries = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    for path in entries:
        is_last = path == entries[-1]
        name = re.sub(r"(?<=tfevents\.).*", "…", path.name)
        name += f" -> {os.readlink(path)}" if path.is_symlink() else "/" * path.is_dir()
        text.append(f"{indent}{'└── ' if is_last else '├── '}", style="dim")
        text.append(name, style="bold" if path.is_dir() else "")
        text.append(f"   {notes[path.name]}\n" if path.name in notes else "\n", style="yellow")
        if path.name in opened:
            deeper = f"{indent}{'    ' if is_last else '│   '}"
            text.append_text(tree(path, opened, notes, deeper))
    return text


def draw_tree(name: str, title: str, listing: Text) -> None:
    """Draw a directory; two of them fit side by side."""
    listing.rstrip()
    write_terminal(name, title, listing, width=47)


def draw_command(name: str, cwd: Path, *command: str, width: int) -> None:
    """Draw what a command prints on a terminal with colours."""
    environment = {**os.environ, "FORCE_COLOR": "1"}
    finished = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    text = Text()
    text.append(f"$ {' '.join(command)}\n", style="bold")
    text.append_text(Text.from_ansi(without_place(finished.stdout, cwd) + finished.stderr))
    text.rstrip()
    write_terminal(name, NAME, text, width=width)


def draw_report(experiment: Path) -> None:
    """Have the report written, and take a picture of its top in a browser."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("No Chromium was found. HINT: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "report.html"
        subprocess.run(["immutable-logs", "report", experiment, "-o", page], check=True, capture_output=True)
        page.write_text(without_place(page.read_text(encoding="utf-8"), experiment), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={scratch}/p"]
        options += ["--window-size=960,1040", f"--screenshot={PICTURES / 'report.png'}"]
        subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True, timeout=60)


def without_place(text: str, experiment: Path) -> str:
    """Replace the directory of the trainings."""
    return text.replace(str(experiment.parents[1]), "/home/user")


def write_terminal(name: str, title: str, text: Text, *, width: int) -> None:
    """Write a picture of a terminal, which loads no fonts from elsewhere and has a size of its own."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    console.print()  # rich cuts off what hangs below the last line
    svg = console.export_svg(title=title, unique_id=name)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    if size is None:
        raise SystemExit("rich no longer writes the size of a picture where it did")
    wide, high = (round(float(each) * SCALE) for each in size.groups())
    svg = svg.replace("<svg ", f'<svg width="{wide}" height="{high}" ', 1)
    svg = "\n".join(line.rstrip() for line in svg.splitlines() if line.strip())
    (PICTURES / f"{name}.svg").write_text(svg + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
