"""`WorkflowMessage`: a message on its way, as checkpoints show it."""

import pytest

from perdure import MessageType, WorkflowEvent, WorkflowMessage


def test_a_message_has_its_payload_its_source_and_defaults() -> None:
    message = WorkflowMessage({"n": 1}, "a")
    assert (message.data, message.source_id, message.target_id) == ({"n": 1}, "a", None)
    assert message.type is MessageType.STANDARD
    assert message.original_request_info_event is None


def test_a_message_comes_back_from_its_dict() -> None:
    asked = WorkflowEvent.request_info("r", "a", "?", str)
    message = WorkflowMessage(
        "x", "internal:a", "a", type=MessageType.RESPONSE, source_span_ids=["s"], original_request_info_event=asked
    )
    assert WorkflowMessage.from_dict(message.to_dict()) == message


@pytest.mark.parametrize("missing", ["data", "source_id"])
def test_a_dict_without_payload_or_source_is_a_key_error(missing: str) -> None:
    told = WorkflowMessage("x", "a").to_dict()
    del told[missing]
    with pytest.raises(KeyError, match=missing):
        WorkflowMessage.from_dict(told)
