"""Running stages on a terminal, by rich: a row each with its step and time; finished lines scroll away above them."""

from __future__ import annotations

import time
from typing import IO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gpu_ami.progress import Stage

_STYLES = {"done": "green", "failed": "red", "note": "dim"}
_REFRESHES = 4  # a second


class LiveDisplay:
    """The live part is on screen while a stage runs. Not thread-safe: `Progress` calls it under its lock."""

    def __init__(self, stream: IO[str], width: int | None = None) -> None:
        self._console = Console(file=stream, force_terminal=True, highlight=False, width=width)
        self.stages: list[Stage] = []
        self._live: Live | None = None

    def begin(self, stage: Stage) -> None:
        self.stages.append(stage)
        if self._live is None:
            self._live = Live(
                get_renderable=self.table,
                console=self._console,
                refresh_per_second=_REFRESHES,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def end(self, stage: Stage) -> None:
        self.stages.remove(stage)
        if not self.stages:
            self.close()

    def line(self, text: str, kind: str) -> None:
        self._console.print(Text(text, style=_STYLES.get(kind, "")), soft_wrap=True)

    def close(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()  # erases the live part and shows the cursor again

    def table(self) -> Table:
        """A row a stage: its name, what it does now, and its elapsed time."""
        # Room for the ^C that a terminal echoes: a row that wraps is one that cannot be erased.
        table = Table.grid(padding=(0, 2), expand=True)
        table.width = max(self._console.width - len("^C^C"), 1)
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, justify="right")
        now = time.monotonic()
        for stage in tuple(self.stages):
            name = Text("  " * stage.level + f"▸ {stage.name}", style="bold")
            table.add_row(name, _state(stage), Text(clock(now - stage.started), style="cyan"))
        return table


def _state(stage: Stage) -> Text:
    count = f"{stage.step} of {stage.total}" if stage.step and stage.total else str(stage.step or "")
    shown = Text(" ".join(filter(None, (count, stage.text))))
    if stage.red:
        shown.append(f"  {stage.red} red", style="bold red")
    return shown


def clock(seconds: float) -> str:
    """`1:05` for 65 seconds, `1:02:05` past an hour."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
