import signal
import threading

import pytest

from kilolayer.train.stopping import stopping_between_steps


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_sets_the_flag_and_the_second_stops_at_once(number):
    with stopping_between_steps() as stop:
        assert not stop
        signal.raise_signal(number)
        assert stop
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_handlers_are_put_back_even_after_an_error():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError), stopping_between_steps():
        raise RuntimeError
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_outside_of_the_main_thread_nothing_sets_it():
    found = []

    def work():
        with stopping_between_steps() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
