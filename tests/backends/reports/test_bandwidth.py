"""The memory's read speed, and when it isn't to be trusted."""

from ggufc.backends.reports.bandwidth import ReadBandwidth, noise


def test_a_small_buffer_is_read_fast() -> None:
    bandwidth = ReadBandwidth(2, 1 << 20)
    assert bandwidth.measure() > 1e8
    bandwidth.close()


def test_reads_that_lie_apart_are_told() -> None:
    assert noise([10e9]) == noise([10e9, 11e9, 9.2e9]) == ""
    assert noise([10e9, 10e9, 6e9]).startswith("memory read 6.0 to 10.0 GB/s")
