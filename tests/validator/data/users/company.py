LIMIT = 4096


def assert_mode(file, mode):
    assert file.mode == mode, f"{file.path}: mode {file.mode:o}, not {mode:o}"
