import asyncio

from monarch.actor import this_host


async def main():
    procs = this_host().spawn_procs()

    async def fails(kind, text, **options):
        try:
            await procs.logging_option(**options)
        except kind as error:
            assert str(error) == text, error
        else:
            raise AssertionError(f"no {kind} for {options}")

    await fails(RuntimeError, "cannot set aggregate window without streaming to client", aggregate_window_sec=1)
    await fails(ValueError, "Invalid logging level: 300", level=300)
    await fails(ValueError, "Invalid logging level: -1", level=-1)
    await fails(ValueError, "Invalid logging level: INFO", level="INFO")
    await fails(ValueError, 'on_slow must be "block" or "drop", but is \'wait\'', on_slow="wait")
    await fails(
        ValueError,
        "aggregate_window_sec must be a number of seconds, but is -1",
        stream_to_client=True,
        aggregate_window_sec=-1,
    )
    await procs.stop()
    await fails(RuntimeError, "`ProcMesh` has already been stopped")


asyncio.run(main())
