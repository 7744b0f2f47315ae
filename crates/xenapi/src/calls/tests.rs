//! Calls, as clients make them.
