from gpu_ami.local.backends.systems_manager import Refused


def test_a_refusal_names_code_and_sentence() -> None:
    assert str(Refused("InvalidInstanceId", "not managed")) == "InvalidInstanceId: not managed"
