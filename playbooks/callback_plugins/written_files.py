"""Records which files the roles of a build wrote, and with what content: written-files.json in the build's folder.

Ansible reports the SHA-1 of each file that `copy` and `template` write. The file account compares the image with it
(docs/file-account.md). A file that another task changes or removes later is no longer recorded.
"""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: written_files
type: aggregate
short_description: record which files the roles of a build wrote
description: Writes written-files.json into the folder that gpu_ami_build_folder names; without it, does nothing.
"""
FILE = "written-files.json"
_WRITERS = ("copy", "template")
_KEEPS_CONTENT = ("file", "directory", "touch")  # states of ansible.builtin.file


class CallbackModule(CallbackBase):
    """One run of a playbook."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "written_files"
    CALLBACK_NEEDS_ENABLED = False

    def __init__(self) -> None:
        super().__init__()
        self._folder = ""
        self._files: dict[str, dict[str, str]] = {}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._folder = play.get_variable_manager().extra_vars.get("gpu_ami_build_folder", "")

    def v2_runner_on_ok(self, result: Any) -> None:
        task, outcome = result._task, result._result
        if task.delegate_to:
            return
        role = task._role.get_name() if task._role else ""
        for row in outcome.get("results", [outcome]):
            if isinstance(row, dict) and not row.get("skipped"):
                self._note(task.action.rpartition(".")[2], role, row)

    def _note(self, action: str, role: str, row: dict[str, Any]) -> None:
        arguments = (row.get("invocation") or {}).get("module_args") or {}
        path = row.get("dest") or row.get("path") or arguments.get("path") or arguments.get("dest")
        if not isinstance(path, str) or not path.startswith("/"):
            return
        path = posixpath.normpath(path)
        if action in _WRITERS and row.get("checksum") and row.get("state", "file") == "file":
            self._files[path] = {"role": role, "sha1": row["checksum"]}
        elif row.get("changed") and not (action == "file" and row.get("state") in _KEEPS_CONTENT):
            removed = row.get("state") == "absent"
            for name in [name for name in self._files if name == path or (removed and name.startswith(f"{path}/"))]:
                del self._files[name]

    def v2_playbook_on_stats(self, _stats: Any) -> None:
        if self._folder:
            text = json.dumps(dict(sorted(self._files.items())), indent=1)
            Path(self._folder, FILE).write_text(f"{text}\n", encoding="utf-8")
