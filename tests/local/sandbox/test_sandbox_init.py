"""Process 1 of a sandbox: settings, devices, the login user."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.local.sandbox import sandbox_init


def test_settings_are_copied_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "kernel/random").mkdir(parents=True)
    (source / "kernel/osrelease").write_text("6.1\n")
    (source / "kernel/random/uuid").write_text("x")
    (source / "kernel/gone").symlink_to("nowhere")
    sandbox_init.copy_settings(source, tmp_path / "target")
    copied = sorted(path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*"))
    assert copied == ["kernel", "kernel/osrelease"]


def test_the_last_file_names_the_default_user(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cloud/cloud.cfg.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/cloud/cloud.cfg").write_text("system_info: {default_user: {name: first}}\n")
    (folder / "10-a.cfg").write_text("system_info: {default_user: {name: second}}\n")
    (folder / "20-b.cfg").write_text("cloud_init_modules: []\n")
    assert sandbox_init.default_user(tmp_path).name == "second"
