"""The viewer's index of a file of episodes: what it refuses, what it finds, and how it is told from an old one."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")

from marft.runs.episode_files import write_episodes
from marft_serve.viewer import episode_index
from marft_serve.viewer.episode_index import FileVersion, IndexCache, build_index
from marft_serve.viewer.episode_query import find_matches
from tests.views import attempt


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_episodes(tmp_path / "episodes" / "step_000001.parquet", [attempt(1, number) for number in range(4)])
    return tmp_path / "episodes" / "step_000001.parquet"


class TestReading:
    def test_columns_of_other_types_are_refused(self, path: Path) -> None:
        table = pq.read_table(path)
        place = table.column_names.index("sample")
        pq.write_table(table.set_column(place, "sample", [["0"] * len(table)]), path)
        with pytest.raises(ValueError, match="holds no episodes of this version"):
            build_index(path)

    @pytest.mark.parametrize("name", ["task", "sample", "total_reward", "status"])
    def test_an_episode_that_lacks_what_each_has_is_refused(self, path: Path, name: str) -> None:
        table = pq.read_table(path)
        place, column = table.column_names.index(name), table[name].to_pylist()
        lacking = pa.array([None, *column[1:]], table.schema.field(name).type)
        pq.write_table(table.set_column(place, name, lacking), path)
        with pytest.raises(ValueError, match="a value is missing"):
            build_index(path)

    def test_a_damaged_page_is_refused(self, path: Path) -> None:
        whole, rows = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
        for number in range(rows.num_columns):
            column = rows.column(number)
            if column.path_in_schema in ("task", "sample", "total_reward", "text"):
                first = column.dictionary_page_offset or column.data_page_offset
                last = first + column.total_compressed_size - 1
                path.write_bytes(whole[:last] + bytes([whole[last] ^ 0x10]) + whole[last + 1 :])
                with pytest.raises(ValueError, match=r"cannot read the episodes of .*step_000001"):
                    build_index(path)

    def test_who_said_nothing_took_no_tokens_and_a_file_may_hold_no_episode(self, tmp_path: Path) -> None:
        lost = attempt(1, 1, actions=(), status="failed", transitions=(), success=None)
        write_episodes(tmp_path / "some.parquet", [attempt(1, 0), lost])
        assert build_index(tmp_path / "some.parquet")["tokens"].to_pylist() == [3, 0]
        write_episodes(tmp_path / "none.parquet", [])
        assert len(build_index(tmp_path / "none.parquet")) == 0


class TestSearching:
    def test_a_text_at_the_very_beginning_is_of_the_episode_that_begins_with_it(self) -> None:
        texts = pa.chunked_array([["abc", "bcd"], ["x", "bcd"]])
        assert find_matches(texts, "bcd").tolist() == [False, True, False, True]
        assert find_matches(texts, "").tolist() == [True] * 4
        assert find_matches(pa.chunked_array([], pa.string()), "").tolist() == []

    def test_half_of_a_character_is_in_no_text(self) -> None:
        assert find_matches(pa.chunked_array([["abc"]]), "\ud800").tolist() == [False]


class TestKeeping:
    def test_a_file_that_has_taken_the_place_of_another_has_another_stamp(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / name).write_text("1234")
            os.utime(tmp_path / name, (9, 9))
        stamp = FileVersion.from_stat((tmp_path / "a").stat())
        assert FileVersion.from_stat((tmp_path / "b").stat()) != stamp, "the same time and size"
        os.utime(tmp_path / "a", ns=(9, 9_000_000_001))
        assert FileVersion.from_stat((tmp_path / "a").stat()) != stamp
        os.utime(tmp_path / "a", (9, 9))
        assert FileVersion.from_stat((tmp_path / "a").stat()) == stamp
        (tmp_path / "a").write_text("12345")
        os.utime(tmp_path / "a", (9, 9))
        assert FileVersion.from_stat((tmp_path / "a").stat()) != stamp

    def test_an_index_of_another_version_is_made_anew(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache, stamp = IndexCache(tmp_path / "cache"), FileVersion.from_stat(path.stat())
        cache.load_index(path, stamp)
        (kept,) = (tmp_path / "cache").glob("*/*.arrow")
        before = kept.read_bytes()
        cache.load_index(path, stamp)
        assert kept.read_bytes() == before
        monkeypatch.setattr(episode_index, "FORMAT_VERSION", "another")
        cache.load_index(path, stamp)
        assert kept.read_bytes() != before

    def test_where_an_index_cannot_be_written_it_is_made_each_time(self, path: Path, tmp_path: Path) -> None:
        cache, stamp = IndexCache(tmp_path / "cache"), FileVersion.from_stat(path.stat())
        cache.load_index(path, stamp)
        (kept,) = (tmp_path / "cache").glob("*/*.arrow")
        kept.unlink()
        (kept / "full").mkdir(parents=True)
        assert cache.load_index(path, stamp).equals(build_index(path))

    def test_a_folder_that_became_a_file_is_gone(self, path: Path, tmp_path: Path) -> None:
        cache = IndexCache(tmp_path / "cache")
        cache.load_index(path, FileVersion.from_stat(path.stat()))
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("a file")
        cache.prune()
        assert not [*(tmp_path / "cache").iterdir()]

    def test_a_cache_that_is_named_by_no_whole_path_is_none(
        self, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As the XDG specification has it."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "relative").mkdir()
        for named, place in (("relative", "home/.cache"), ("", "home/.cache"), (str(tmp_path / "whole"), "whole")):
            monkeypatch.setenv("XDG_CACHE_HOME", named)
            monkeypatch.setenv("HOME", str(tmp_path / "home"))
            IndexCache.for_user().load_index(path, FileVersion.from_stat(path.stat()))
            assert len([*(tmp_path / place / "marft" / "view").glob("*/*.arrow")]) == 1
        assert not [*(tmp_path / "relative").iterdir()]
