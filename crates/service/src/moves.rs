//! Moves of VMs to other hosts, and from them.

use toolstack::channel::ChannelId;
use toolstack::moves::{
    Arrival, DomidWish, MigrateRequest, Pace, Reach, ReceiveRequest, Speaks, Verdict, Wishes,
};
use toolstack::{Reply, Request, xlcfg};

use crate::{Ask, Failed, News, Progress, Service, succeeded, unexpected};

impl Service<'_> {
    pub(crate) fn channel(&self) -> Result<ChannelId, Failed> {
        let without = || Failed::Told("no connection came with the request".to_owned());
        self.door.channel().ok_or_else(without)
    }

    /// As long as the client is there: otherwise the guest stays.
    pub(crate) fn migrate(&self, migrate: api::Migrate) -> Result<api::Reply, Failed> {
        let api::Migrate {
            target: api::Target(target),
            to,
            by,
            pace,
            downtime_ms,
            arrival,
            file,
            cwd,
            config_text,
            same_domid,
            connections,
            progress,
        } = migrate;
        let read = |text: String| {
            let source = xlcfg::Source { file: &file, text: &text, overrides: &[] };
            self.configuration(source, &cwd, false, true).map(Box::new)
        };
        let wishes = Wishes {
            config: config_text.map(read).transpose()?,
            domid: if same_domid { DomidWish::Same } else { DomidWish::Any },
            lanes: connections,
        };
        let transfer = self.daemon.fresh_uuid().map_err(Failed::Told)?;
        let (channel, peer) = match by {
            api::Reach::Command(command) => (self.channel()?, Reach::Command(command)),
            api::Reach::Peer(name) => {
                (self.daemon.call(&name).map_err(Failed::Told)?, Reach::Peer(name))
            }
        };
        let request = Request::Migrate(Box::new(MigrateRequest {
            target: target.clone(),
            channel,
            to,
            from: self.daemon.kernel().host,
            peer: Some(peer),
            transfer,
            pace: match pace {
                api::Pace::Live => Pace::Live,
                api::Pace::Stopped => Pace::Stopped,
            },
            downtime_ms,
            arrival: arrived(arrival),
            wishes,
        }));
        let ask = Ask { asker: self.asker, request, progress: Progress::from(progress) };
        let replied = self.daemon.wait(ask, None, self.door, &mut |news| match news {
            News::Progress(far) => self.tell_far(&target, &far),
            News::Started { .. } | News::Told(_) => Ok(()),
        });
        match replied {
            Ok(Some(reply)) => match succeeded(reply)? {
                Reply::Ok => Ok(api::Reply::Done),
                other => Err(unexpected(&other)),
            },
            Ok(None) => unreachable!("it is waited for without end"),
            Err(gone) => {
                self.daemon.put(Request::CancelMove { transfer });
                Err(gone.into())
            }
        }
    }

    /// What the connection is for is heard on it.
    pub(crate) fn receive(
        &self,
        speaks: api::Speaks,
        arrival: api::Arrival,
    ) -> Result<api::Reply, Failed> {
        let channel = self.channel()?;
        let transfer = self.daemon.fresh_uuid().map_err(Failed::Told)?;
        let speaks = match speaks {
            api::Speaks::Own => Speaks::Own,
            api::Speaks::Xl => Speaks::Xl,
        };
        let arrival = arrived(arrival);
        self.done(Request::Receive(ReceiveRequest { channel, speaks, arrival, transfer }))
    }

    /// An operator knows where a VM runs.
    pub(crate) fn settle(&self, target: String, runs: api::Runs) -> Result<api::Reply, Failed> {
        let verdict = match runs {
            api::Runs::Here => Verdict::Here,
            api::Runs::There => Verdict::There,
        };
        self.done(Request::Settle { target, verdict })
    }
}

fn arrived(arrival: api::Arrival) -> Arrival {
    match arrival {
        api::Arrival::Runs => Arrival::Runs,
        api::Arrival::StaysPaused => Arrival::StaysPaused,
    }
}
