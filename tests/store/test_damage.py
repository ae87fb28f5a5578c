"""What is done to a directory is found by verify, with file and offset; repair mends what can be mended."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_core.clock import ManualClock
from rmq_core.protocol.record import CRC_PROPERTY_SIZE, decode_record, scan_records
from rmq_core.store.repair import RepairOptions, repair
from rmq_core.store.verify import Verified, verify
from support.stores import open_store, put

SEED = 20_261_118
MESSAGES = 70
OPTIONS = RepairOptions(truncate=True, queue_file_size=200, index_shape=(20, 40))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of three log files, four queues, one of them of delayed messages, and several index files."""
    root = tmp_path_factory.mktemp("damage") / "pristine"
    store = open_store(root)
    for number in range(MESSAGES):
        if number % 9 == 8:
            store.put(
                "SCHEDULE_TOPIC_XXXX", 2, b"later", b"DELAY\x013\x02UNIQ_KEY\x01d%d\x02" % number,
                born_time_ms=1, born_host=b"\x7f\0\0\x01\0\0\0\x01",
            )  # fmt: skip
        else:
            put(store, number, topic="Orders" if number % 3 else "Events", queue_id=number % 2)
        store.end_pass()
    store.close()
    assert verify(root).problems == []
    return root


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "store"))


def paths(found: Verified) -> set[str]:
    return {problem.path for problem in found.problems}


def last_file(root: Path) -> Path:
    return max((root / "commitlog").iterdir())


def log_positions(path: Path) -> list[tuple[int, int]]:
    return list(scan_records(path.read_bytes()))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def check_mended(root: Path, *, bad_log: bool = False) -> None:
    """Repair it; then verify accepts all but what is wrong inside the log, and a store opens it and goes on."""
    repair(root, options=OPTIONS)
    found = verify(root)
    left = [problem for problem in found.problems if not (bad_log and problem.path.startswith("commitlog"))]
    assert left == []
    store = open_store(root)
    put(store, 99, topic="Orders", queue_id=0)
    store.end_pass()
    store.close()
    after = verify(root)
    assert [problem for problem in after.problems if not (bad_log and problem.path.startswith("commitlog"))] == []
    assert after.records == found.records + 1


def test_a_log_cut_at_any_byte_of_its_last_records_is_told_and_mended(root: Path, tmp_path: Path) -> None:
    """Puts zeros from each byte of the last record on, as a power cut does, and from some of the one before."""
    path = last_file(root)
    data = path.read_bytes()
    positions = log_positions(path)[-2:]
    records = verify(root).records
    for cut in [*range(positions[0][0], positions[1][0], 5), *range(positions[1][0], sum(positions[1]))]:
        path.write_bytes(data[:cut].ljust(len(data), b"\0"))
        lost = 2 if cut < positions[1][0] else 1
        at, size = positions[-lost]
        if cut >= at + size - len(decode_record(data, at).property_bytes):
            lost -= 1  # all lengths and the body are there: only its keys and tag are not
        found = verify(root)
        assert found.records == records - lost, cut
        assert {problem.path.split("/")[0] for problem in found.problems} & {"index", "consumequeue"}, cut
        if lost and data[positions[-lost][0] : cut].strip(b"\0"):
            log = [problem for problem in found.problems if problem.path.startswith("commitlog")]
            assert [problem.offset for problem in log] == [positions[-lost][0]], cut
        if cut % 47 == 0:
            copy = tmp_path / str(cut)
            shutil.copytree(root, copy)
            check_mended(copy)


# Bytes of a record that nothing else tells: without a CRC over the whole record a flip there cannot be seen.
UNPROTECTED = {*range(16, 20), *range(36, 84)}  # flag; system flag to prepared transaction offset


def test_a_flipped_bit_of_a_record_is_found_wherever_something_else_tells_what_it_was(root: Path) -> None:
    """Flips a bit of each byte of one record, but of times, hosts and flags, which nothing protects."""
    path = last_file(root)
    position, size = log_positions(path)[3]
    pristine_bytes = path.read_bytes()
    record = decode_record(pristine_bytes, position)
    assert set(record.properties) == {"UNIQ_KEY", "KEYS", "TAGS"}
    for at in range(size):
        if at in UNPROTECTED:
            continue
        flip(path, (position + at) * 8 + at % 8)
        assert verify(root).problems, at
        path.write_bytes(pristine_bytes)


def test_a_record_with_a_crc_of_its_own_is_protected_in_every_byte(tmp_path: Path) -> None:
    """Writes a store with enabledAppendPropCRC and flips a bit of each byte, the name of that property aside."""
    root = tmp_path / "store"
    store = open_store(root, enabled_append_prop_crc=True)
    for number in range(6):
        put(store, number)
    store.end_pass()
    store.close()
    assert verify(root).problems == []
    path = last_file(root)
    position, size = log_positions(path)[2]
    data = path.read_bytes()
    for at in range(0, size, 3):
        if size - CRC_PROPERTY_SIZE <= at < size - CRC_PROPERTY_SIZE + len("__CRC32#"):
            continue
        flip(path, (position + at) * 8 + at % 8)
        assert verify(root).problems, at
        path.write_bytes(data)


def test_a_flipped_bit_of_an_entry_is_found_in_its_place(root: Path, pristine: Path) -> None:
    """Flips bits of every byte of all entries of a queue of messages, and of one of delayed messages."""
    for name in ("consumequeue/Orders/1", "consumequeue/SCHEDULE_TOPIC_XXXX/2"):
        path = min((root / name).iterdir())
        data = path.read_bytes()
        used = len(data.rstrip(b"\0"))
        for bit in range(0, used * 8, 53):
            flip(path, bit)
            found = verify(root)
            own = [problem for problem in found.problems if problem.path == str(path.relative_to(root))]
            assert bit // 8 // 20 * 20 in {problem.offset for problem in own}, (name, bit)
            path.write_bytes(data)


def test_a_flipped_bit_of_the_index_is_found_in_its_file(root: Path) -> None:
    """Flips bits of header, slots and entries of the first index file, one time field aside."""
    path = min((root / "index").iterdir())
    data = path.read_bytes()
    header, slots, entries = range(16, 40), range(40, 120), range(140, 40 + 80 + 40 * 20)
    for at in (*header, *slots[::7], *entries[::31]):
        flip(path, at * 8 + at % 8)
        assert str(path.relative_to(root)) in paths(verify(root)), at
        path.write_bytes(data)


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("where", ["log", "rest"])
def test_flips_anywhere_never_stop_verify_or_repair(root: Path, number: int, where: str) -> None:
    """Flips twenty bits in random files and mends. A record that says another queue offset now cannot be mended."""
    chance = random.Random(SEED + number)
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size > 4]
    files = [path for path in files if (path.parent.name == "commitlog") == (where == "log")]
    for _ in range(20):
        path = chance.choice(files)
        flip(path, chance.randrange(path.stat().st_size * 8))
    verify(root)
    repair(root, options=OPTIONS)
    found = verify(root)
    if where == "rest":
        assert found.problems == []
    open_store(root).close()


def test_a_page_of_zeros_inside_the_log_is_told_and_its_messages_stay_blank(root: Path) -> None:
    """Zeros half a page in the first file: both brokers' queues go on behind the hole, and verify names it."""
    path = min((root / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    damaged_at = max(position for position, _ in log_positions(path) if position <= 1024)
    data[1024:1536] = bytes(512)
    path.write_bytes(data)
    found = verify(root)
    assert (f"commitlog/{path.name}", damaged_at) in {(problem.path, problem.offset) for problem in found.problems}
    assert any("damaged part of the log" in problem.text for problem in found.problems)
    done = repair(root, options=OPTIONS)
    assert [damage.start for damage in done.damages] == [damaged_at]
    check_mended(root, bad_log=True)
    assert [problem.offset for problem in verify(root).problems] == [damaged_at]


def test_zeros_in_queue_and_index_are_found_and_mended(root: Path) -> None:
    """Zeros the middle of a queue file and of an index file."""
    for path in (min((root / "consumequeue/Orders/1").iterdir()), min((root / "index").iterdir())):
        data = bytearray(path.read_bytes())
        data[60:160] = bytes(100)
        path.write_bytes(data)
        assert str(path.relative_to(root)) in paths(verify(root))
    check_mended(root)


@pytest.mark.parametrize("kind", ["commitlog", "consumequeue/Orders/1", "index", "checkpoint"])
@pytest.mark.parametrize("change", [-7, 9])
def test_a_file_of_another_length_is_named(root: Path, kind: str, change: int) -> None:
    """Cuts and lengthens one file of each kind."""
    path = root / kind if kind == "checkpoint" else max((root / kind).iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"x" * change)
    found = verify(root)
    own = [problem for problem in found.problems if problem.path == str(path.relative_to(root))]
    assert own
    assert own[0].offset in (0, len(data), len(data) + change)
    check_mended(root)


def delete_queue_file(root: Path) -> Path:
    path = sorted((root / "consumequeue/Orders/1").iterdir())[0]
    path.unlink()
    return path


def delete_queue(root: Path) -> Path:
    shutil.rmtree(root / "consumequeue/Orders/0")
    return root / "consumequeue/Orders/0"


def rename_queue_file(root: Path) -> Path:
    path = sorted((root / "consumequeue/Events/1").iterdir())[-1]
    return path.rename(path.with_name("00000000000000000007"))


def rename_queue(root: Path) -> Path:
    return (root / "consumequeue/Events/1").rename(root / "consumequeue/Events/one")


def delete_index_file(root: Path) -> Path:
    min((root / "index").iterdir()).unlink()
    return root / "commitlog" / f"{0:020d}"  # the first message whose key is nowhere


def rename_index_file(root: Path) -> Path:
    path = min((root / "index").iterdir())
    return path.rename(path.with_name("index.old"))


def delete_checkpoint(root: Path) -> Path:
    (root / "checkpoint").unlink()
    return root / "checkpoint"


def promise_too_much(root: Path) -> Path:
    path = root / "checkpoint"
    data = path.read_bytes()
    path.write_bytes((1 << 50).to_bytes(8, "big") + data[8:])
    return path


def rename_log_file(root: Path) -> Path:
    path = last_file(root)
    return path.rename(path.with_name("00000000000000000077"))


@pytest.mark.parametrize(
    "damage",
    [
        delete_queue_file, delete_queue, rename_queue_file, rename_queue, delete_index_file, rename_index_file,
        delete_checkpoint, promise_too_much,
    ],
)  # fmt: skip
def test_files_that_are_gone_or_misnamed_are_named_and_built_again(
    root: Path, damage: Callable[[Path], Path]
) -> None:
    """Deletes or renames one, looks whether the problem says which, and mends."""
    path = damage(root)
    assert str(path.relative_to(root)) in paths(verify(root))
    check_mended(root)


def test_a_misnamed_log_file_is_named(root: Path) -> None:
    """Renames the last one: its messages are gone for everybody, and repair must not touch it."""
    path = rename_log_file(root)
    assert str(path.relative_to(root)) in paths(verify(root))
    data = path.read_bytes()
    repair(root, options=OPTIONS)
    assert path.read_bytes() == data
    assert paths(verify(root)) == {str(path.relative_to(root))}


def test_a_deleted_log_file_is_told_as_one_region(root: Path) -> None:
    """Removes the file in the middle."""
    path = sorted((root / "commitlog").iterdir())[1]
    path.unlink()
    told = [(each.offset, each.text) for each in verify(root).problems if each.path.startswith("commitlog")]
    assert (0, "the file is missing up to 8192") in told
    check_mended(root, bad_log=True)


def test_an_abort_file_is_a_note_and_what_only_a_start_would_do_is_no_problem(root: Path) -> None:
    """Leaves the mark of a running broker, and takes the newest index file away, as Apache's start does."""
    (root / "abort").write_text("1")
    max((root / "index").iterdir()).unlink()
    found = verify(root)
    assert found.problems == []
    assert any("abort" in note for note in found.notes)
    assert any("keys are not in the index" in note for note in found.notes)


@pytest.mark.parametrize("promised", [False, True])
def test_a_queue_that_a_killed_broker_had_not_written_yet_is_no_problem(tmp_path: Path, promised: bool) -> None:
    """The first message of a topic came after the queues were written for the last time, says the checkpoint."""
    root, clock = tmp_path / "store", ManualClock()
    store = open_store(root, clock=clock)
    put(store, 0, topic="Old")
    store.end_pass()
    store.close()
    checkpoint = (root / "checkpoint").read_bytes()
    clock._now_ms += 5_000
    store = open_store(root, clock=clock)
    for number, topic in ((1, "New"), (2, "Old")):
        put(store, number, topic=topic)
        store.end_pass()
        clock._now_ms += 1_000
    store.close()
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue/New")
    if not promised:
        (root / "checkpoint").write_bytes(checkpoint)
    found = verify(root)
    assert bool(found.problems) is promised
    assert ("the queue New/0 is not there yet" in found.notes) is not promised


def test_the_topic_table_tells_a_deleted_topic_from_a_lost_queue(root: Path) -> None:
    """Removes the queues of a topic that topics.json does not know."""
    (root / "config").mkdir()
    (root / "config/topics.json").write_text('{"topicConfigTable":{"Orders":{},"SCHEDULE_TOPIC_XXXX":{}}}')
    shutil.rmtree(root / "consumequeue/Events")
    found = verify(root)
    assert found.problems == []
    assert any("Events" in note for note in found.notes)


def test_what_follows_the_last_record_is_told_and_kept_unless_truncation_is_asked_for(root: Path) -> None:
    """Writes rubbish behind the end of the log."""
    path = last_file(root)
    end = sum(log_positions(path)[-1])
    data = bytearray(path.read_bytes())
    data[end + 30 : end + 34] = b"torn"
    path.write_bytes(data)
    done = repair(root, options=RepairOptions(queue_file_size=200, index_shape=(20, 40)))
    assert not done.is_tail_clean
    assert path.read_bytes() == bytes(data)
    assert [(problem.path, problem.offset) for problem in verify(root).problems] == [
        (str(path.relative_to(root)), end)
    ]
    check_mended(root)
