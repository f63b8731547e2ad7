"""Dependencies and streams of launches."""

from dataclasses import replace

from cuda_programs import BRANCHES, cuda_of

from graphc.backends.cuda.schedule import MAX_STREAMS, dependencies, schedule, shuffled


def touches(*ranges: tuple[int, int, bool]) -> list:
    """Ranges of the arena: first byte, end, whether it is written."""
    return [(("arena", 0), start, end, writes) for start, end, writes in ranges]


def test_readers_follow_writers_and_writers_follow_readers():
    write, read = touches((0, 8, True)), touches((4, 12, False))
    assert dependencies([write, read]) == ((), (0,))
    assert dependencies([read, write]) == ((), (0,))
    assert dependencies([write, write]) == ((), (0,))
    assert dependencies([read, read]) == ((), ())
    assert dependencies([write, touches((8, 12, False))]) == ((), ())


def test_what_follows_from_others_is_left_out():
    first, second = touches((0, 8, True)), touches((0, 8, False), (8, 16, True))
    third = touches((0, 8, False), (8, 16, False))
    assert dependencies([first, second, third]) == ((), (0,), (1,))


def test_bytes_of_different_places_are_different():
    output = [(("output", 0), 0, 8, True)]
    assert dependencies([output, touches((0, 8, True))]) == ((), ())


def test_small_branches_get_streams_and_large_ones_do_not():
    source = cuda_of(BRANCHES)
    planned = schedule(source.steps)
    assert 1 < planned.count <= MAX_STREAMS
    for number, (after, stream) in enumerate(zip(planned.after, planned.streams)):
        assert all(other < number for other in after) and stream < planned.count
    assert schedule([replace(step, grid=1 << 16) for step in source.steps]).count == 1


def test_a_chain_stays_on_one_stream():
    source = cuda_of("""graph @g(%x: f32[9,5]) -> ? {
  const %w : f32[5,5] = random(seed=1)
  %a = MatMul(%x, %w)
  %b = Softmax(%a)
  %c = MatMul(%b, %w)
  %y = Softmax(%c)
  return %y
}""")
    planned = schedule(source.steps)
    assert planned.count == 1
    assert planned.after == tuple((n - 1,) if n else () for n in range(len(source.steps)))


def test_orders_that_dependencies_allow():
    after = ((), (), (0,), (1,), (2, 3), ())
    orders = {tuple(shuffled(after, seed)) for seed in range(50)}
    assert len(orders) > 10 and all(sorted(order) == [*range(6)] for order in orders)
    for order in orders:
        assert all(
            order.index(n) > order.index(m) for n, before in enumerate(after) for m in before
        )
    assert shuffled(after, 3) == shuffled(after, 3)
