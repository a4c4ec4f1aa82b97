"""What another version stored: newer fields are ignored and told."""

from world import running


def test_fields_of_a_newer_version_are_ignored_and_told_once_a_generation() -> None:
    world = running(mesh={"a": 1}, training={"batchSize": 7, "curriculum": []})
    world.settle()
    assert world.condition("Training") == ("True", "Running")
    said = world.status["conditions"][0]["message"]
    assert "spec.training.curriculum, spec.mesh; update it, or remove them" in said
    assert said.endswith("; the spec is valid")
    assert world.events.count("Warning UnknownFields") == 1

    world.edit(backoffLimit=-1)
    world.settle()
    assert world.condition("Accepted") == ("False", "InvalidSpec")
    world.edit(backoffLimit=5)
    world.settle()
    assert world.events.count("Warning UnknownFields") == 2
    del world.document["spec"]["mesh"]
    world.edit(training={"batchSize": 7})
    world.settle()
    assert world.status["conditions"][0]["message"] == "the spec is valid"
    assert [world.status[field] for field in ("run", "attempt")] == [1, 1]


def test_what_is_ignored_is_named_as_far_as_it_helps() -> None:
    world = running(**{f"{index:0>200}": index for index in range(100)})
    said = world.status["conditions"][0]["message"]
    assert "and 95 more; update it" in said
    assert said.endswith("; the spec is valid")
