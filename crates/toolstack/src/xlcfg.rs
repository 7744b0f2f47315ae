//! Reads `xl.cfg` files.
