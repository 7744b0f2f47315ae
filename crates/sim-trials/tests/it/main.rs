//! Short forms of the trials, from fixed seeds.

mod days;
mod identity;
mod kills;
mod listings;
mod mass;
mod story;
mod swarm;
