//! Commands for caches and memory bandwidth that CPUs share.

use std::thread;
use std::time::Duration;

use api::{
    CachePart, HostRequest, PsrCounter, PsrHardware, PsrRequest, PsrSamples, PsrShares, Request,
    Target,
};

use super::{expect_reply, pools};
use crate::columns::psr as columns;
use crate::options::Options;
use crate::session::{Failure, Session};

/// Between two samples of a bandwidth, as for xl.
const SAMPLING: Duration = Duration::from_millis(10);

fn call(session: &mut Session, request: PsrRequest) -> Result<api::Reply, Failure> {
    session.call(&Request::Host(HostRequest::Psr(request)))
}

fn change(session: &mut Session, request: PsrRequest) -> Result<(), Failure> {
    pools::ask(session, HostRequest::Psr(request))
}

/// The domains that are named from this operand on.
fn targets(options: &Options, first: usize) -> Vec<Target> {
    options.operands.iter().skip(first).cloned().map(Target).collect()
}

fn target(options: &Options) -> Target {
    Target(options.operands[0].clone())
}

pub(crate) fn hwinfo(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let hardware: PsrHardware = expect_reply!(call(session, PsrRequest::Hardware)?, PsrHardware);
    if options.has("json") {
        session.print_json(&hardware);
        return Ok(());
    }
    let wanted = ["cmt", "cat", "mba"].map(|name| options.has(name));
    let all = wanted == [false; 3];
    let [cmt, cat, mba] = wanted.map(|it| it || all);
    let mut text = String::new();
    if cmt {
        text += &columns::monitoring(&hardware);
    }
    if cat {
        text += &columns::caches(&hardware);
    }
    if mba {
        text += &columns::bandwidth(&hardware);
    }
    if text.is_empty() {
        let what =
            "this host's CPUs cannot do that, or Xen does not use it: its command line has psr=";
        return Err(Failure::failed(what));
    }
    session.print(&text);
    Ok(())
}

pub(crate) fn cmt_attach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    change(session, PsrRequest::CmtAttach { target: target(options) })
}

pub(crate) fn cmt_detach(session: &mut Session, options: &Options) -> Result<(), Failure> {
    change(session, PsrRequest::CmtDetach { target: target(options) })
}

fn samples(
    session: &mut Session,
    counter: PsrCounter,
    options: &Options,
) -> Result<PsrSamples, Failure> {
    let request = PsrRequest::CmtShow { counter, targets: targets(options, 1) };
    Ok(expect_reply!(call(session, request)?, PsrSamples))
}

pub(crate) fn cmt_show(session: &mut Session, options: &Options) -> Result<(), Failure> {
    const COUNTERS: [PsrCounter; 3] =
        [PsrCounter::CacheOccupancy, PsrCounter::TotalMemBandwidth, PsrCounter::LocalMemBandwidth];
    let wanted = &options.operands[0];
    let counter = COUNTERS.into_iter().find(|it| columns::counter_name(*it) == wanted);
    let counter = counter.ok_or_else(|| {
        let names = COUNTERS.map(columns::counter_name).join(", ");
        Failure::usage(format!("{wanted}: no such monitor type; there are {names}"))
    })?;
    let first = samples(session, counter, options)?;
    if counter == PsrCounter::CacheOccupancy {
        match options.has("json") {
            true => session.print_json(&first),
            false => session.print(&columns::samples(&first, None)),
        }
        return Ok(());
    }
    thread::sleep(SAMPLING);
    let second = samples(session, counter, options)?;
    match options.has("json") {
        // Who wants a rate takes the difference.
        true => session.print_json(&[first, second]),
        false => session.print(&columns::samples(&second, Some(&first))),
    }
    Ok(())
}

fn show(
    session: &mut Session,
    options: &Options,
    request: PsrRequest,
    what: columns::Shared,
) -> Result<(), Failure> {
    let shares: Vec<PsrShares> = expect_reply!(call(session, request)?, PsrShares);
    match options.has("json") {
        true => session.print_json(&shares),
        false => session.print(&columns::shares(&shares, what)),
    }
    Ok(())
}

fn level(options: &Options) -> Result<u32, Failure> {
    let level = options.value("level").unwrap_or("3");
    level.parse().map_err(|_| Failure::usage(format!("{level}: no level of a cache")))
}

pub(crate) fn cat_show(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = PsrRequest::CatShow { level: level(options)?, targets: targets(options, 0) };
    show(session, options, request, columns::Shared::Cache)
}

pub(crate) fn mba_show(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let request = PsrRequest::MbaShow { targets: targets(options, 0) };
    show(session, options, request, columns::Shared::Bandwidth)
}

/// As in `0,2-3`.
fn sockets(options: &Options) -> Result<Vec<u32>, Failure> {
    /// More than any machine has.
    const SOCKET_MAX: u32 = 1023;
    let Some(text) = options.value("socket") else { return Ok(Vec::new()) };
    let number = |text: &str| text.trim().parse().ok().filter(|it| *it <= SOCKET_MAX);
    let range = |text: &str| match text.split_once('-') {
        None => number(text).map(|one| one..=one),
        Some((first, last)) => Some(number(first)?..=number(last)?),
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    let sockets: Vec<u32> = ranges.into_iter().flatten().flatten().collect();
    if sockets.is_empty() {
        return Err(Failure::usage(format!("{text}: expected numbers of sockets, as in 0,2-3")));
    }
    Ok(sockets)
}

/// Decimal, hexadecimal with `0x`, or octal with `0`.
fn share(text: &str) -> Result<u64, Failure> {
    let (digits, radix) = match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, radix).map_err(|_| Failure::usage(format!("{text}: no number")))
}

pub(crate) fn cat_set(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let part = match (options.has("code"), options.has("data")) {
        (true, true) => return Err(Failure::failed("-c and -d exclude each other")),
        (true, false) => Some(CachePart::Code),
        (false, true) => Some(CachePart::Data),
        (false, false) => None,
    };
    let (level, sockets, cbm) = (level(options)?, sockets(options)?, share(&options.operands[1])?);
    change(session, PsrRequest::CatSet { target: target(options), level, part, sockets, cbm })
}

pub(crate) fn mba_set(session: &mut Session, options: &Options) -> Result<(), Failure> {
    let (sockets, thrtl) = (sockets(options)?, share(&options.operands[1])?);
    change(session, PsrRequest::MbaSet { target: target(options), sockets, thrtl })
}
