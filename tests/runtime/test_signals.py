"""Signals set a flag; a second Ctrl-C does not wait."""

from __future__ import annotations

import os
import signal

import pytest

from titan.runtime.signals import StopRequest

pytestmark = pytest.mark.quick


@pytest.fixture
def stop():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    request = StopRequest.install()
    yield request
    request.uninstall()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signal_sets_the_flag_and_says_which(stop, number):
    assert not stop.requested
    os.kill(os.getpid(), number)
    assert (stop.requested, stop.reason) == (True, number.name)


def test_second_interrupt_raises_whatever_came_before(stop):
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert stop.reason == "SIGTERM"


def test_there_is_one_request_a_process(stop):
    assert StopRequest.install() is stop


def test_first_reason_stays(stop):
    stop.request("time limit")
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.reason == "time limit"
