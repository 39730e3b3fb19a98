"""What the proxy counts and tells: sites that come and leave, bytes, refusals, without a flood."""

from __future__ import annotations

import asyncio
import json

import pytest

from flamma.deploy import traffic as module
from flamma.deploy.hosts import ServerHost
from flamma.deploy.traffic import ProxyTraffic, read_traffic


@pytest.fixture
def server(tmp_path):
    host = ServerHost(tmp_path / "server", "127.0.0.1", 1, 2, ("a", "b"))
    for folder in (host.state, host.logs):
        folder.mkdir(parents=True)
    return host


def told(server):
    path = server.logs / "flamma.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_site_joins_once_leaves_after_silence_and_is_counted_on(server, monkeypatch):
    monkeypatch.setattr(module, "ABSENT_SECONDS", 0.05)
    monkeypatch.setattr(module, "_SAVE_SECONDS", 0.01)

    async def lives():
        traffic = ProxyTraffic.of(server)
        for _ in range(3):
            traffic.seen("a")
            traffic.passed("a", 10, 100)
        await asyncio.sleep(0.15)
        monkeypatch.setattr(module, "ABSENT_SECONDS", 60.0)  # however slow the machine is
        traffic.seen("a")
        await asyncio.sleep(0.03)

    asyncio.run(lives())
    assert [e["event"] for e in told(server)] == ["site joined", "site left", "site joined"]
    assert {e["part"] for e in told(server)} == {"proxy"}
    sites, _ = read_traffic(server)
    assert (sites["a"].requests, sites["a"].bytes_up, sites["a"].bytes_down) == (4, 30, 300)
    again = ProxyTraffic.of(server)  # another process goes on counting
    again.passed("a", 1, 1)
    assert again.sites["a"].bytes_up == 31


def test_a_flood_of_strangers_is_one_event_and_all_are_counted(server):
    async def lives():
        traffic = ProxyTraffic.of(server)
        for number in range(1000):
            traffic.refused(401, None, (f"192.0.2.{number % 250}", number))
        traffic.refused(413, "b")
        traffic.save()

    asyncio.run(lives())
    assert [(e["event"], e["details"]["status"]) for e in told(server)] == [
        ("request refused", 401),
        ("limit hit", 413),
    ]
    assert read_traffic(server)[1] == {401: 1000, 413: 1}


def test_what_was_left_out_is_counted_in_the_next_event(server, monkeypatch):
    async def lives():
        traffic = ProxyTraffic.of(server)
        for _ in range(1235):
            traffic.crowded("192.0.2.1")
        monkeypatch.setattr(module, "_REFUSAL_SECONDS", 0.0)
        traffic.crowded("192.0.2.1")

    asyncio.run(lives())
    first, second = told(server)
    assert first["message"].startswith("a stranger at 192.0.2.1: ")
    assert second["message"] == f"{first['message']} (1,234 more of these since the last one)"


@pytest.mark.parametrize("text", ["", "[]", '{"sites": 1}', '{"sites": {"a": {}}}', "\xff"])
def test_damaged_counts_begin_anew(server, text):
    (server.state / "traffic.json").write_text(text, encoding="latin-1")
    assert read_traffic(server) == ({}, {})
