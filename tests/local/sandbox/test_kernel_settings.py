"""Settings of /proc/sys as plain files."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.local.sandbox import kernel_settings


def test_settings_are_copied_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "kernel/random").mkdir(parents=True)
    (source / "kernel/osrelease").write_text("6.1\n")
    (source / "kernel/random/uuid").write_text("x")
    (source / "kernel/gone").symlink_to("nowhere")
    (source / "top").write_bytes(b"\xe4\n")
    settings = kernel_settings.read(str(source))
    assert settings == {"kernel/osrelease": "6.1\n", "top": "\xe4\n"}
    kernel_settings.write(settings, str(tmp_path / "target"))
    copied = sorted(path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*"))
    assert copied == ["kernel", "kernel/osrelease", "top"]
    assert (tmp_path / "target/top").read_bytes() == b"\xe4\n"
