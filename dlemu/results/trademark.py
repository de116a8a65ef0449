"""What must stand wherever others may read the name MLPerf."""

TRADEMARK = (
    "MLPerf is a trademark of the MLCommons Association. dlemu is none of its products, and no result of dlemu is one"
    " that MLCommons has verified."
)
