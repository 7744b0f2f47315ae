//! Which of several connections carries a page, and what has come over all of them.
//!
//! A page always goes over the same connection, where what is sent later comes later. So no round needs
//! to wait for another; a round is complete when its end has come on every connection.

use crate::error::Fault;

/// Pages that always go together: what a superpage covers.
const REGION_PAGES: u64 = 512;

/// How many connections a migration has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lanes(u8);

/// One of them. Lane 0 also carries all that is not a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lane {
    pub number: u8,
    pub of: Lanes,
}

/// What says that connections belong together: a number nobody else can guess.
pub type Token = [u8; 16];

impl Lanes {
    pub const ONE: Self = Self(1);

    /// `None` for no connection at all.
    #[must_use]
    pub fn new(count: u8) -> Option<Self> {
        (count > 0).then_some(Self(count))
    }

    #[must_use]
    pub fn count(self) -> u8 {
        self.0
    }

    /// The lane of a page. Neighbouring regions are spread, and so are those at equal distances.
    #[must_use]
    pub fn lane_of(self, pfn: u64) -> u8 {
        let mixed = (pfn / REGION_PAGES).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let [.., lane, _, _, _, _] = (mixed * u64::from(self.0)).to_be_bytes();
        lane
    }

    /// All of them.
    pub fn iter(self) -> impl Iterator<Item = Lane> {
        (0..self.0).map(move |number| Lane { number, of: self })
    }
}

impl Lane {
    /// The only lane of a file.
    pub const ONLY: Self = Self { number: 0, of: Lanes::ONE };

    #[must_use]
    pub fn carries(self, pfn: u64) -> bool {
        self.of.lane_of(pfn) == self.number
    }

    pub(crate) fn encode(self, token: &Token, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.number, self.of.0]);
        out.extend_from_slice(token);
    }

    pub(crate) fn decode(body: &[u8]) -> Result<(Self, Token), Fault> {
        let wrong = Fault::Length(body.len() as u64);
        let Some(([number, count], token)) = body.split_first_chunk() else { return Err(wrong) };
        let token = Token::try_from(token).map_err(|_| wrong)?;
        let of = Lanes::new(*count).filter(|_| number < count);
        let of = of.ok_or(Fault::Unknown("the number of the connection", (*number).into()))?;
        Ok((Self { number: *number, of }, token))
    }
}

/// What has come over the lanes of a migration.
#[derive(Clone, Debug)]
pub struct Arrivals {
    lanes: Vec<Progress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Rounds of which the lane has seen the end.
    rounds: u32,
    has_ended: bool,
}

impl Arrivals {
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        Self { lanes: vec![Progress::default(); usize::from(lanes.count())] }
    }

    /// The end of a round has come on a lane, and all its pages before were applied.
    ///
    /// # Panics
    /// If there is no such lane. A reader has checked the order of rounds.
    pub fn end_round(&mut self, lane: Lane, epoch: u32) {
        let progress = &mut self.lanes[usize::from(lane.number)];
        progress.rounds = progress.rounds.max(epoch.saturating_add(1));
    }

    /// The end has come on a lane, and all before was applied.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn end(&mut self, lane: Lane) {
        self.lanes[usize::from(lane.number)].has_ended = true;
    }

    /// How many rounds are complete: the state is consistent when this is all that were sent.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.rounds).min().unwrap_or(0)
    }

    /// Whether all lanes have ended, after as many rounds: everything has come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let rounds = self.rounds();
        self.lanes.iter().all(|lane| lane.has_ended && lane.rounds == rounds)
    }
}
