"""Repair: what it builds is what brokers would have built, and a crash in its middle loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_core import open_store as open_offline
from rmq_core.errors import StoreError
from rmq_core.store.message_store import MessageStore
from rmq_core.store.repair import RepairOptions, repair
from rmq_core.store.verify import verify
from support.stores import GOLDEN_NAMES, numbers, open_store, put, unpack_golden

SMALL = RepairOptions(queue_file_size=200, index_shape=(20, 40))


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_what_apache_wrote_is_built_again(name: str, tmp_path: Path) -> None:
    """Throws queues and index away, batch and light queues too, and reads every topic before and after."""
    store = unpack_golden(name, tmp_path)
    settings = store.settings()
    options = RepairOptions(
        truncate=True, delay_levels=settings.message_delay_level, queue_file_size=2000, index_shape=(500, 1200)
    )
    with open_offline(store.root) as reader:
        topics = {info.topic for info in reader.topics() if info.max_offset}
        before = {topic: reader.to_arrow(topic, columns="all", include_properties=True) for topic in topics}
        log = reader.to_arrow(columns="all")
    copy = tmp_path / "mended"
    done = repair(store.root, to=copy, options=options)
    assert done.records == verify(copy).records
    assert verify(copy).problems == []
    with open_offline(copy) as reader:
        assert reader.to_arrow(columns="all").equals(log)
        for topic, table in before.items():
            again = reader.to_arrow(topic, columns="all", include_properties=True)
            if store.is_clean:
                assert again.equals(table), topic
            else:  # a queue of a killed broker may end before its log
                assert again.num_rows >= table.num_rows
    mended = MessageStore(settings.__class__(**{**settings.__dict__, "store_path_root_dir": str(copy)}))
    mended.open()
    mended.close()
    assert verify(copy).problems == []


def test_a_crash_in_the_middle_of_a_repair_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops it when the old queues are gone and the new ones not in their place; then a store opens it."""
    root = tmp_path / "store"
    store = open_store(root)
    for number in range(80):
        put(store, number)
        store.end_pass()
    store.close()
    rename = Path.rename
    renamed: list[Path] = []

    def stop(self: Path, target: Path) -> Path:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", stop)
        with pytest.raises(KeyboardInterrupt):
            repair(root, options=SMALL)
    assert not (root / "consumequeue").exists()
    assert (root / "abort").exists()
    store = open_store(root)
    assert numbers(store) == list(range(80))
    store.close()
    assert verify(root).problems == []
    repair(root, options=SMALL)
    assert not (root / ".repair").exists()
    assert verify(root).problems == []


def test_a_failed_copy_leaves_nothing_behind(tmp_path: Path) -> None:
    """Copies a directory with a file that cannot be read: a link to nowhere."""
    root = tmp_path / "store"
    store = open_store(root)
    put(store, 1)
    store.end_pass()
    store.close()
    (root / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError, match="broken"):
        repair(root, to=tmp_path / "copy", options=SMALL)
    assert not (tmp_path / "copy").exists()
    with pytest.raises(StoreError, match="no commit log"):
        repair(tmp_path / "nowhere", options=SMALL)
    assert not (tmp_path / "nowhere").exists()


def test_a_record_with_a_wrong_queue_offset_does_not_cost_those_behind_it(tmp_path: Path) -> None:
    """Changes the queue offset in one record: the others keep their places, and a hole is where it was."""
    root = tmp_path / "store"
    store = open_store(root)
    places = [put(store, number).log_offset for number in range(20)]
    store.end_pass()
    store.close()
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[places[5] + 20 : places[5] + 28] = (1 << 40).to_bytes(8, "big")
    path.write_bytes(data)
    repair(root, options=SMALL)
    with open_offline(root) as reader:
        assert [int(body[:8]) for body in reader.to_arrow("Orders")["body"].to_pylist()] == [
            number for number in range(20) if number != 5
        ]
