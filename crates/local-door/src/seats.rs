//! How many connections users may have who are not admins, so that admins always find one.

use std::collections::BTreeMap;

/// Of one user.
const OF_A_USER_MAX: usize = 32;
/// Of all of them together.
const OF_ALL_USERS_MAX: usize = 128;

/// Connections by user.
#[derive(Debug, Default)]
pub(crate) struct Seats(BTreeMap<u32, usize>);

impl Seats {
    /// One more connection of a user; if there may be no more, why.
    pub(crate) fn take(&mut self, uid: u32) -> Result<(), String> {
        let all: usize = self.0.values().sum();
        let count = self.0.get(&uid).copied().unwrap_or_default();
        if count >= OF_A_USER_MAX {
            return Err(format!("uid {uid} has {OF_A_USER_MAX} connections already; close one"));
        }
        if all >= OF_ALL_USERS_MAX {
            return Err(format!("users have {OF_ALL_USERS_MAX} connections already; try again"));
        }
        self.0.insert(uid, count + 1);
        Ok(())
    }

    /// A connection of a user has ended.
    pub(crate) fn give_back(&mut self, uid: u32) {
        match self.0.get_mut(&uid) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(&uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_and_all_users_have_so_many_connections() {
        let mut seats = Seats::default();
        for uid in 1000..1004 {
            (0..OF_A_USER_MAX).for_each(|_| seats.take(uid).unwrap());
        }
        assert_eq!(seats.take(1000).unwrap_err(), "uid 1000 has 32 connections already; close one");
        assert_eq!(seats.take(2000).unwrap_err(), "users have 128 connections already; try again");
        seats.give_back(1000);
        seats.take(2000).unwrap();
        seats.take(1000).unwrap_err();
        (0..OF_A_USER_MAX).for_each(|_| seats.give_back(1001));
        seats.take(1000).unwrap();
        assert_eq!(seats.0.keys().copied().collect::<Vec<_>>(), [1000, 1002, 1003, 2000]);
    }
}
