//! What is wrong with a stream, and where.

/// A stream that cannot be read further.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct StreamError {
    /// For the operator: the record by its number and name, and its first byte's offset.
    pub place: String,
    pub fault: Fault,
}

/// What is wrong.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("this is not {0}")]
    NotOne(&'static str),
    #[error("version {0} is not supported")]
    Version(u32),
    #[error("it was written by a big-endian host")]
    BigEndian,
    #[error("{0} has a value that is not known: {1:#x}")]
    Unknown(&'static str, u64),
    #[error("it ends early: it was cut off")]
    Truncated,
    #[error("its length of {0} bytes is wrong for this record")]
    Length(u64),
    #[error("it is {0} bytes long, more than a record may be")]
    TooLong(u64),
    #[error("its padding is not zero")]
    Padding,
    #[error("this record is not known, and the domain cannot be restored without it")]
    UnknownRecord,
    #[error("this record is not for a {0} domain")]
    WrongKind(&'static str),
    #[error("it comes before {0}")]
    Before(&'static str),
    #[error("it comes after {0}")]
    After(&'static str),
    #[error("it comes twice")]
    Twice,
    #[error("page {0:#x} is beyond what this domain may have")]
    PageBeyond(u64),
    #[error("the value of a node is missing, or is not text with a NUL at its end")]
    Pairs,
    #[error("it is damaged: its checksum does not match")]
    Checksum,
    #[error("it is damaged: its data cannot be decompressed")]
    Decompress,
    #[error("it was not finished: its end is missing")]
    Unfinished,
    #[error("it needs `{0}`, which this version does not know")]
    Essential(String),
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} does not match the rest")]
    Mismatch(&'static str),
    #[error("bytes follow the end")]
    AfterEnd,
}
