"""The notice that must accompany the name MLPerf wherever it is published."""

TRADEMARK = (
    "MLPerf is a trademark of the MLCommons Association. dlemu is none of its products, and no result of dlemu is one"
    " that MLCommons has verified."
)
