"""What rate windows hold, for tests that say how many places are taken."""

from sqlalchemy import text

from app.store.engine import Database

_TAKEN = text("SELECT coalesce(sum(x), 0) AS taken FROM rate_windows CROSS JOIN LATERAL unnest(calls) AS x")


async def places_taken(database: Database) -> int:
    """Calls made or booked, of all windows of the database together."""
    return int((await database.fetch(_TAKEN))[0].taken)


async def forget_windows(database: Database) -> None:
    """No call was ever made."""
    async with database.transaction() as connection:
        await connection.execute(text("DELETE FROM rate_windows"))
