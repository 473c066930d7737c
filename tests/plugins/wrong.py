"""Objects that are not valid plugins."""

from __future__ import annotations


class NeitherInterface:
    pass


class NeedsArguments:
    def __init__(self, device):
        self.device = device

    def run(self, _model, _inputs):
        raise AssertionError("cannot be made")


class NoDevice:
    @classmethod
    def prepare(cls, _model, _device):
        raise AssertionError("supports no device")

    @classmethod
    def supports_device(cls, _device):
        return False


class PreparesNothing:
    @classmethod
    def prepare(cls, _model, _device):
        return None


class HostileProperty:
    @property
    def prepare(self):
        raise SystemExit(0)


def function():
    raise AssertionError("no interface")


hostile = HostileProperty()
number = 7
