//! (under construction)

