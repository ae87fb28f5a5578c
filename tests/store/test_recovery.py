"""Directories that something happened to: the store starts with all good messages, or says why it cannot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.errors import StoreError
from rmq_core.protocol.record import BLANK_SIZE, decode_pull_body
from rmq_core.store.checkpoint import Checkpoint
from rmq_core.store.disk import Disk
from rmq_core.store.message_store import MessageStore
from support.stores import numbers, open_store, put, records_of, unpack_golden

COUNT = 60
FOREVER_MS = (1 << 63) - 1
LOG_SIZE, QUEUE_SIZE = 4096, 200


def fill(root: Path, *, count: int = COUNT, is_clean: bool = True) -> list[tuple[int, int]]:
    """A store with messages in two queues and several files; returns where each message stands in the log."""
    store = open_store(root)
    places = []
    for number in range(count):
        result = put(store, number, queue_id=number % 2, size=60 if number % 5 else 300)
        places.append((result.log_offset, result.end))
        if number % 4 == 3:
            store.end_pass()
    store.end_pass()
    store.close()
    if not is_clean:
        (root / "abort").touch()
    return places


def found_in(store: MessageStore) -> list[int]:
    return sorted(numbers(store, queue_id=0) + numbers(store, queue_id=1))


def found_one_by_one(store: MessageStore) -> list[int]:
    """The same where one message may be damaged, which would hide those behind it in an answer."""
    found = []
    for queue_id in (0, 1):
        for offset in range(store.min_offset("Orders", queue_id), store.max_offset("Orders", queue_id)):
            got = store.get("Orders", queue_id, offset, 1)
            found += [int(record.body[:8]) for record in decode_pull_body(b"".join(got.parts), verify_crc=True)[:1]]
    return found


def check_goes_on(root: Path, expected: list[int]) -> None:
    """The messages are there, new ones follow without a gap, keys are found, and the next start agrees."""
    store = open_store(root)
    assert found_in(store) == expected
    offsets = [record.queue_offset for record in records_of(store, "Orders", 0)]
    assert offsets == sorted(set(offsets))
    for number in (900, 902):
        put(store, number, queue_id=0)
    store.end_pass()
    store.rebuild_index()
    for number in (*expected[-3:], 902):
        assert len(store.query("Orders", f"k{number}", 64, 0, FOREVER_MS)) == 1, number
    store.close()
    again = open_store(root)
    assert found_in(again) == [*expected, 900, 902]
    again.close()


def log_path(root: Path, log_offset: int) -> Path:
    return root / "commitlog" / f"{log_offset - log_offset % LOG_SIZE:020d}"


def overwrite(root: Path, log_offset: int, data: bytes) -> None:
    with log_path(root, log_offset).open("r+b") as file:
        file.seek(log_offset % LOG_SIZE)
        file.write(data)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_log_cut_anywhere_in_its_last_records_keeps_those_before(tmp_path: Path, is_clean: bool) -> None:
    """Zeros from each byte of the last record on; queues and index still name what is lost."""
    places = fill(tmp_path / "whole", count=9, is_clean=is_clean)
    start, end = places[-2][0], places[-1][1]
    data = log_path(tmp_path / "whole", start).read_bytes()
    for cut in (*range(start, places[-1][0], 7), *range(places[-1][0], end, 7 if is_clean else 1)):
        root = tmp_path / "cut"
        shutil.copytree(tmp_path / "whole", root)
        overwrite(root, cut, bytes(end - cut))
        store = open_store(root)
        kept = sum(place[1] <= cut for place in places)
        # The last bytes of a record may be zero themselves, or be bytes that no check covers.
        assert found_in(store) in (list(range(kept)), list(range(kept + 1))), cut
        found = len(found_in(store))
        assert found == kept or data[cut % LOG_SIZE : places[kept][1] % LOG_SIZE].strip(b"\0") == b"" or is_clean
        assert store.log.end == places[found - 1][1]
        store.close()
        tail = log_path(root, start).read_bytes()[store.log.end % LOG_SIZE :]
        assert tail.count(0) == len(tail)
        shutil.rmtree(root)


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_flipped_bit_costs_the_one_message_it_is_in(tmp_path: Path, is_clean: bool) -> None:
    """Flips a bit in size, magic, body, topic and lengths of a message in the first, a middle and the last file."""
    places = fill(tmp_path / "whole", is_clean=is_clean)
    for number in (3, COUNT // 2, COUNT - 2):
        for position in (3, 4, 30, 86, 88, 95):
            root = tmp_path / "flipped"
            shutil.copytree(tmp_path / "whole", root)
            at = places[number][0] + position
            (byte,) = log_path(root, at).read_bytes()[at % LOG_SIZE : at % LOG_SIZE + 1]
            overwrite(root, at, bytes([byte ^ 0x10]))
            store = open_store(root)
            assert set(range(COUNT)) - set(found_one_by_one(store)) <= {number}, (number, position)
            ends = [store.max_offset("Orders", queue_id) for queue_id in (0, 1)]
            # That there was a last message of a queue only that message tells.
            is_forgotten = number == COUNT - 2 and number not in found_one_by_one(store)
            assert ends in ([COUNT // 2 - is_forgotten, COUNT // 2], [COUNT // 2] * 2)
            put(store, 900)
            store.end_pass()
            store.close()
            shutil.rmtree(root)


@pytest.mark.parametrize("place", [0, 512, LOG_SIZE, LOG_SIZE + 1024])
def test_a_zeroed_page_in_what_was_flushed_costs_no_more_than_itself(tmp_path: Path, place: int) -> None:
    """Zeros in the first two files of a killed store whose checkpoint is newer: all other messages stay."""
    places = fill(tmp_path, is_clean=False)
    overwrite(tmp_path, place, bytes(512))
    hit = {number for number, (start, end) in enumerate(places) if start < place + 512 and end > place}
    checkpoint = Checkpoint(Disk(), tmp_path / "checkpoint")
    checkpoint.load()
    checkpoint.log_time_ms += 1  # flushed before the kill
    checkpoint.store()
    store = open_store(tmp_path)
    assert found_in(store) == [number for number in range(COUNT) if number not in hit]
    assert [store.max_offset("Orders", queue_id) for queue_id in (0, 1)] == [COUNT // 2] * 2
    store.close()


def test_a_hole_in_what_was_not_flushed_ends_the_log(tmp_path: Path) -> None:
    """The same zeros with a checkpoint that promises nothing: whatever follows them was promised to nobody."""
    places = fill(tmp_path, is_clean=False)
    overwrite(tmp_path, LOG_SIZE + 1024, bytes(512))
    (tmp_path / "checkpoint").unlink()
    kept = sum(end <= LOG_SIZE + 1024 for _, end in places)
    check_goes_on(tmp_path, list(range(kept)))


QUEUE = Path("consumequeue/Orders/0")


def spoil_queue_file(root: Path) -> None:
    (root / QUEUE / f"{0:020d}").write_bytes(b"\xff" * QUEUE_SIZE)


def damages() -> dict[str, Callable[[Path], object]]:
    second = QUEUE / f"{QUEUE_SIZE:020d}"
    return {
        "nothing": lambda root: None,
        "no queue file": lambda root: (root / second).unlink(),
        "no first queue file": lambda root: (root / QUEUE / f"{0:020d}").unlink(),
        "no queue": lambda root: shutil.rmtree(root / QUEUE),
        "no queues": lambda root: shutil.rmtree(root / "consumequeue"),
        "a misnamed queue file": lambda root: (root / second).rename(root / QUEUE / f"{17:020d}"),
        "a queue file with a word for a name": lambda root: (root / second).rename(root / QUEUE / "second"),
        "a short queue file": lambda root: (root / second).write_bytes(bytes(100)),
        "a long queue file": lambda root: (root / second).write_bytes((root / second).read_bytes() + b"more"),
        "an empty last queue file": lambda root: (root / QUEUE / f"{3 * QUEUE_SIZE:020d}").touch(),
        "a misnamed queue": lambda root: (root / QUEUE).rename(root / "consumequeue/Orders/zero"),
        "no index": lambda root: shutil.rmtree(root / "index"),
        "a short index file": lambda root: next((root / "index").iterdir()).write_bytes(b"short"),
        "no checkpoint": lambda root: (root / "checkpoint").unlink(),
        "an empty checkpoint": lambda root: (root / "checkpoint").write_bytes(b""),
        "a checkpoint of the far future": lambda root: (root / "checkpoint").write_bytes(b"\x7f" * 4096),
        "a checkpoint of noise": lambda root: (root / "checkpoint").write_bytes(b"\xff\x01" * 2048),
        "a spare log file": lambda root: (root / "commitlog" / f"{LOG_SIZE * 4:020d}").write_bytes(bytes(LOG_SIZE)),
        "an empty last log file": lambda root: (root / "commitlog" / f"{LOG_SIZE * 4:020d}").touch(),
        "a foreign file in the log": lambda root: (root / "commitlog" / "notes.txt").write_text("hello"),
        "no lock file": lambda root: (root / "lock").unlink(),
    }


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", damages())
def test_what_stands_beside_the_log_is_built_again(tmp_path: Path, damage: str, is_clean: bool) -> None:
    """Removes, renames, cuts and lengthens files of queues, index and checkpoint: no message is lost by it."""
    fill(tmp_path, is_clean=is_clean)
    damages()[damage](tmp_path)
    check_goes_on(tmp_path, list(range(COUNT)))


def test_a_queue_with_entries_of_other_messages_is_built_again_after_a_kill(tmp_path: Path) -> None:
    """Noise in a whole queue file."""
    fill(tmp_path, is_clean=False)
    spoil_queue_file(tmp_path)
    check_goes_on(tmp_path, list(range(COUNT)))


def test_a_shortened_log_file_is_filled_up(tmp_path: Path) -> None:
    """The last of three files ends within its records; those before are kept."""
    places = fill(tmp_path, is_clean=False)
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    last.write_bytes(last.read_bytes()[:400])
    kept = sum(end <= int(last.name) + 400 for _, end in places)
    check_goes_on(tmp_path, list(range(kept)))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "but mappedFileSizeCommitLog is 4096"),
        (lambda path: path.rename(path.with_name(f"{100:020d}")), "starts at no multiple of 4096"),
    ],
    ids=["lengthened", "misnamed"],
)
def test_a_log_file_that_fits_no_setting_stops_the_start(
    tmp_path: Path, spoil: Callable[[Path], object], sentence: str
) -> None:
    """A file of another size, or at another place: nothing is changed, and the sentence names file and setting."""
    fill(tmp_path)
    path = sorted((tmp_path / "commitlog").iterdir())[0]
    spoil(path)
    before = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()}
    for _ in range(2):
        with pytest.raises(StoreError, match=sentence):
            open_store(tmp_path)
    after = {each: each.read_bytes() for each in tmp_path.rglob("*") if each.is_file() and each.name != "abort"}
    assert after == {each: data for each, data in before.items() if each.name != "abort"}


def test_a_log_file_that_is_gone_costs_its_messages_alone(tmp_path: Path) -> None:
    """Removes the file in the middle: queue offsets of the others stay, with nothing between them."""
    places = fill(tmp_path, is_clean=False)
    log_path(tmp_path, LOG_SIZE).unlink()
    expected = [number for number, (start, _) in enumerate(places) if start // LOG_SIZE != 1]
    checkpoint = Checkpoint(Disk(), tmp_path / "checkpoint")
    checkpoint.load()
    checkpoint.log_time_ms += 1
    checkpoint.store()
    store = open_store(tmp_path)
    assert found_in(store) == expected
    assert store.max_offset("Orders", 0) == COUNT // 2
    store.close()


def test_old_bytes_behind_the_end_of_the_log_are_never_taken_for_records(tmp_path: Path) -> None:
    """Whole records of an earlier life stand behind the end: they are zeros after the first start."""
    places = fill(tmp_path, is_clean=False)
    last = log_path(tmp_path, places[-1][0])
    data = bytearray(last.read_bytes())
    at = places[-3][0] % LOG_SIZE
    old = bytes(data[at : places[-1][1] % LOG_SIZE])
    data[at:] = bytes(len(data) - at)
    data[at + BLANK_SIZE : at + BLANK_SIZE + len(old)] = old
    last.write_bytes(data)
    store = open_store(tmp_path)
    assert found_in(store) == list(range(COUNT - 3))
    store.close()
    assert last.read_bytes()[at:].count(0) == LOG_SIZE - at


def test_a_log_that_lost_its_start_keeps_its_queue_offsets(tmp_path: Path) -> None:
    """The first file was removed and so were the queues: they begin with blanks, at the right offset."""
    places = fill(tmp_path)
    log_path(tmp_path, 0).unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    expected = [number for number, (start, _) in enumerate(places) if start >= LOG_SIZE]
    store = open_store(tmp_path)
    first = next(number for number in expected if number % 2 == 0)
    assert store.min_offset("Orders", 0) == first // 2
    assert store.max_offset("Orders", 0) == COUNT // 2
    assert found_in(store) == expected
    store.close()
    first_file = min((tmp_path / QUEUE).iterdir())
    begins_in_file = first // 2 - int(first_file.name) // 20
    blank = bytes(8) + b"\x7f\xff\xff\xff" + bytes(8)
    assert first_file.read_bytes()[: begins_in_file * 20] == blank * begins_in_file
    again = open_store(tmp_path)
    assert (again.min_offset("Orders", 0), found_in(again)) == (first // 2, expected)
    again.close()


def test_a_queue_that_began_anew_after_its_topic_was_removed_keeps_its_messages(tmp_path: Path) -> None:
    """The topic is removed and made again; after a kill the log holds both lives, and the second one counts."""
    store = open_store(tmp_path)
    for number in range(5):
        put(store, number)
    store.end_pass()
    store.remove_topic("Orders")
    for number in (10, 11):
        put(store, number)
    store.end_pass()
    store.close()
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()
    store = open_store(tmp_path)
    assert numbers(store) == [10, 11]
    store.close()


@pytest.mark.parametrize("claimed", [-10, -1, 1, 2])
@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_a_record_with_a_wrong_queue_offset_costs_itself_alone(
    tmp_path: Path, claimed: int, is_clean: bool
) -> None:
    """One record claims the place of a neighbour, and the queues are gone: no other one is kept out."""
    places = fill(tmp_path, is_clean=is_clean)
    wrong = 20
    overwrite(tmp_path, places[wrong][0] + 20, (wrong // 2 + claimed).to_bytes(8, "big"))
    shutil.rmtree(tmp_path / "consumequeue")
    store = open_store(tmp_path)
    found = found_one_by_one(store)
    assert set(range(COUNT)) - set(found) <= {wrong, wrong + 2 * claimed}
    assert len(found) >= COUNT - 2
    assert store.max_offset("Orders", 0) == COUNT // 2
    for number in (COUNT - 2, COUNT - 4):
        (record,) = decode_pull_body(b"".join(store.get("Orders", 0, number // 2, 1).parts), verify_crc=True)
        assert int(record.body[:8]) == number
    store.close()


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed"])
def test_batch_queues_that_are_gone_are_built_again(tmp_path: Path, is_clean: bool) -> None:
    """Takes the batch queues away from a directory of Apache's broker: the same units come from the log."""
    golden = unpack_golden("apache-5.3.3-normal", tmp_path)
    folder = golden.root / "batchconsumequeue"
    before = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before
    shutil.rmtree(folder)
    if not is_clean:
        (golden.root / "abort").touch()
    store = MessageStore(golden.settings())
    store.open()
    store.close()
    for name, data in before.items():
        assert (folder / name).read_bytes() == data, name
    assert not (golden.root / "consumequeue" / "ga-BatchCq").exists()


def test_a_damaged_bit_makes_no_batch_queue(tmp_path: Path) -> None:
    """One record says that it holds several messages: its queue stays what it is, and keeps all the others."""
    places = fill(tmp_path)
    overwrite(tmp_path, places[30][0] + 36, (0x80).to_bytes(4, "big"))
    store = open_store(tmp_path)
    assert not store.queues.batch
    assert {*range(COUNT)} - {30} <= {*found_one_by_one(store), 30}
    store.close()
