from gpu_ami.local.backends.systems_manager.associations import Association


def test_filters_select_an_association() -> None:
    one = Association("Document", "name", [], {}, 0.0)
    assert one.is_selected([{"key": "AssociationName", "value": "name"}, {"key": "Name", "value": "Document"}])
    assert not one.is_selected([{"key": "AssociationName", "value": "other"}])
    assert one.describe()["Overview"] == {"Status": "Pending"}
