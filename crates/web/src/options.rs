//! The command line.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use api::Role;
use gate::Scope;
use lexopt::{Arg, ValueExt as _};

use crate::oidc::Settings;
use crate::traces::Collector;

const HELP: &str = "\
Usage: xylem-web [OPTIONS]
       xylem-web client add-token|add-user|add-certificate|add-oidc|
                        remove|list ...
       xylem-web tag add|remove|list ...
       xylem-web check-log FILE

Serves Xylem to remote clients: a REST API, events, and a web page.

      --listen ADDRESS      IP address and port (127.0.0.1:8443)
      --certificate FILE    Of this host, in PEM, with those that sign it
      --key FILE            Its private key, in PEM
      --make-certificate    Make both, if they are missing, signed by itself
      --client-ca FILE      Signs the certificates of clients, in PEM
      --clients FILE        Who is let in (/etc/xylem-web/clients)
      --tags FILE           Tags of VMs (/etc/xylem-web/tags)
      --log FILE            What clients have done, each line with the hash of
                            the one before it
      --xenapi              Serve XenAPI, too
      --labels FILE         What its clients label objects with
      --rate N              Requests of a client in a second, in the long run (100)
      --otlp URL            Send operations as traces to a collector of
                            OpenTelemetry (OTLP over HTTP)
      --otlp-ca FILE        Signs its certificate, in PEM
      --oidc-issuer URL     Let the page's users log in at a provider of OpenID
                            Connect
      --oidc-client-id ID   What it calls this host
      --oidc-client-secret-file FILE   What this host shows it
      --oidc-claim CLAIM    Which claim of its tokens says who somebody is (sub);
                            email counts if it is verified
      --oidc-ca FILE        Signs its certificate, in PEM
      --origin URL          Where browsers find this host, such as
                            https://xen1:8443
      --print               Print the address on the standard output
      --socket FILE         xylemd's (/run/xylem/xylemd.sock)
      --try                 Let one client in as an admin, by the token that is
                            printed, and nobody else
      --help, --version

Clients:
  xylem-web client add-token NAME --role ROLE [--days N] [--tag TAG]...
  xylem-web client add-user NAME --role ROLE [--days N] [--tag TAG]...
                            the password is the first line of the standard input
  xylem-web client add-certificate NAME --role ROLE [--days N] [--tag TAG]...
                            --certificate FILE
  xylem-web client add-oidc NAME --role ROLE [--days N] [--tag TAG]...
                            [--called VALUE]  what the claim says (NAME)
  xylem-web client remove NAME
  xylem-web client list
ROLE is viewer, operator or admin. A client with --tag sees VMs that have one of
its tags, and nothing else of the host. All take --clients FILE.

Tags of VMs, which are for the host's root to give:
  xylem-web tag add VM TAG  VM is a UUID or a name
  xylem-web tag remove VM TAG
  xylem-web tag list
All take --tags FILE and --socket FILE.
";

/// Where clients are written down.
const CLIENTS: &str = "/etc/xylem-web/clients";

/// Where tags of VMs are written down.
const TAGS: &str = "/etc/xylem-web/tags";

/// Requests of a client in a second.
pub(crate) const RATE: u32 = 100;

#[derive(Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
    /// Make the first two, if they are missing.
    pub(crate) make: bool,
}

#[derive(Debug)]
pub(crate) struct Serve {
    pub(crate) listen: SocketAddr,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) access: Option<PathBuf>,
    /// The file of tags.
    pub(crate) tags: Option<PathBuf>,
    pub(crate) log: Option<PathBuf>,
    pub(crate) socket: PathBuf,
    pub(crate) tries: bool,
    pub(crate) xenapi: bool,
    /// What clients of XenAPI label objects with.
    pub(crate) labels: Option<PathBuf>,
    /// Requests of a client in a second.
    pub(crate) rate: u32,
    /// Who gets operations as traces.
    pub(crate) collector: Option<Collector>,
    pub(crate) oidc: Option<Settings>,
    /// Say on the standard output where.
    pub(crate) prints: bool,
}

/// A change of the file of clients.
#[derive(Debug)]
pub(crate) enum Change {
    AddToken(New),
    AddUser(New),
    AddCertificate(New, PathBuf),
    /// What the provider calls it, if not so.
    AddOidc(New, Option<String>),
    Remove(String),
    List,
}

#[derive(Debug)]
pub(crate) struct New {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) days: Option<u64>,
    pub(crate) scope: Scope,
}

/// A change of the file of tags: a VM and its tag.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum TagChange {
    Add(String, String),
    Remove(String, String),
    List,
}

#[derive(Debug)]
pub(crate) enum Command {
    Serve(Box<Serve>),
    Clients { file: PathBuf, what: Change },
    Tags { file: PathBuf, socket: PathBuf, what: TagChange },
    CheckLog(PathBuf),
    Print(String),
}

#[derive(Default)]
struct GivenOidc {
    issuer: Option<String>,
    client: Option<String>,
    secret_file: Option<PathBuf>,
    claim: Option<String>,
    ca: Option<PathBuf>,
}

impl GivenOidc {
    /// Of a host at this address.
    fn settings(self, origin: Option<String>) -> Result<Option<Settings>> {
        let Some(issuer) = self.issuer else {
            let rest = [self.client.is_some(), self.secret_file.is_some(), self.claim.is_some()];
            if rest.contains(&true) || self.ca.is_some() || origin.is_some() {
                bail!("give --oidc-issuer: what else was given is for logging in there");
            }
            return Ok(None);
        };
        Ok(Some(Settings {
            issuer,
            client: self.client.context("give --oidc-client-id")?,
            secret_file: self.secret_file.context("give --oidc-client-secret-file")?,
            claim: self.claim.unwrap_or_else(|| "sub".to_owned()),
            ca: self.ca,
            origin: origin.context("give --origin: where browsers find this host")?,
        }))
    }
}

#[derive(Default)]
struct Given {
    listen: Option<SocketAddr>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    make: bool,
    client_ca: Option<PathBuf>,
    clients: Option<PathBuf>,
    log: Option<PathBuf>,
    socket: Option<PathBuf>,
    tries: bool,
    rate: Option<u32>,
    otlp: Option<Collector>,
    otlp_ca: Option<PathBuf>,
    prints: bool,
    xenapi: bool,
    labels: Option<PathBuf>,
    role: Option<Role>,
    days: Option<u64>,
    tags: Option<PathBuf>,
    tag: BTreeSet<String>,
    oidc: GivenOidc,
    origin: Option<String>,
    called: Option<String>,
    words: Vec<String>,
}

pub(crate) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Command> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut given = Given::default();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("help") => return Ok(Command::Print(HELP.to_owned())),
            Arg::Long("version") => {
                let release = concat!("xylem-web ", env!("CARGO_PKG_VERSION"), "\n");
                return Ok(Command::Print(release.to_owned()));
            }
            Arg::Value(word) => given.words.push(word.string()?),
            Arg::Long(name) => {
                let name = name.to_owned();
                given.take(&name, &mut parser)?;
            }
            other @ Arg::Short(_) => return Err(other.unexpected().into()),
        }
    }
    given.command()
}

impl Given {
    fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<()> {
        match name {
            "try" => self.tries = true,
            "print" => self.prints = true,
            "xenapi" => self.xenapi = true,
            "labels" => self.labels = Some(parser.value()?.into()),
            "otlp" => self.otlp = Some(Collector::at(&parser.value()?.string()?)?),
            "otlp-ca" => self.otlp_ca = Some(parser.value()?.into()),
            "rate" => self.rate = Some(parser.value()?.parse()?),
            "make-certificate" => self.make = true,
            "listen" => {
                let text = parser.value()?.string()?;
                let address = text.parse();
                self.listen =
                    Some(address.with_context(|| format!("{text:?} is no address with a port"))?);
            }
            "certificate" => self.certificate = Some(parser.value()?.into()),
            "key" => self.key = Some(parser.value()?.into()),
            "client-ca" => self.client_ca = Some(parser.value()?.into()),
            "clients" => self.clients = Some(parser.value()?.into()),
            "log" => self.log = Some(parser.value()?.into()),
            "socket" => self.socket = Some(parser.value()?.into()),
            "role" => {
                let word = parser.value()?.string()?;
                let role = Role::of(&word);
                self.role = Some(role.with_context(|| {
                    format!("{word:?} is no role; there are viewer, operator and admin")
                })?);
            }
            "tags" => self.tags = Some(parser.value()?.into()),
            "tag" => drop(self.tag.insert(parser.value()?.string()?)),
            "origin" => self.origin = Some(parser.value()?.string()?),
            "called" => self.called = Some(parser.value()?.string()?),
            "oidc-issuer" => self.oidc.issuer = Some(parser.value()?.string()?),
            "oidc-client-id" => self.oidc.client = Some(parser.value()?.string()?),
            "oidc-client-secret-file" => self.oidc.secret_file = Some(parser.value()?.into()),
            "oidc-claim" => self.oidc.claim = Some(parser.value()?.string()?),
            "oidc-ca" => self.oidc.ca = Some(parser.value()?.into()),
            "days" => self.days = Some(parser.value()?.parse()?),
            other => bail!("there is no option --{other}; see --help"),
        }
        Ok(())
    }

    fn command(self) -> Result<Command> {
        let words: Vec<_> = self.words.iter().map(String::as_str).collect();
        match words[..] {
            [] => self.serve(),
            ["check-log", file] => Ok(Command::CheckLog(file.into())),
            ["client", ref what @ ..] => {
                let what = self.change(what)?;
                let file = self.clients.unwrap_or_else(|| CLIENTS.into());
                Ok(Command::Clients { file, what })
            }
            ["tag", ref what @ ..] => {
                let what = match *what {
                    ["add", vm, tag] => TagChange::Add(vm.to_owned(), tag.to_owned()),
                    ["remove", vm, tag] => TagChange::Remove(vm.to_owned(), tag.to_owned()),
                    ["list"] => TagChange::List,
                    _ => bail!("tag {:?} is nothing to do; see --help", what.join(" ")),
                };
                let file = self.tags.unwrap_or_else(|| TAGS.into());
                let socket = self.socket.unwrap_or_else(api::client::socket_path);
                Ok(Command::Tags { file, socket, what })
            }
            _ => bail!("{:?} is nothing to do; see --help", words.join(" ")),
        }
    }

    fn change(&self, words: &[&str]) -> Result<Change> {
        let new = |name: &str| -> Result<New> {
            let role = self.role.context("say what it may do: --role viewer, operator or admin")?;
            let scope = match self.tag.is_empty() {
                true => Scope::Host,
                false => Scope::Tagged(self.tag.clone()),
            };
            Ok(New { name: name.to_owned(), role, days: self.days, scope })
        };
        Ok(match *words {
            ["list"] => Change::List,
            ["remove", name] => Change::Remove(name.to_owned()),
            ["add-token", name] => Change::AddToken(new(name)?),
            ["add-user", name] => Change::AddUser(new(name)?),
            ["add-certificate", name] => {
                let file = self.certificate.clone().context("give --certificate FILE")?;
                Change::AddCertificate(new(name)?, file)
            }
            ["add-oidc", name] => Change::AddOidc(new(name)?, self.called.clone()),
            _ => bail!("client {:?} is nothing to do; see --help", words.join(" ")),
        })
    }

    fn serve(self) -> Result<Command> {
        let tls = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                let (client_ca, make) = (self.client_ca, self.make);
                Some(TlsFiles { certificate, key, client_ca, make })
            }
            (None, None) if self.make || self.client_ca.is_some() => {
                bail!("give --certificate and --key")
            }
            (None, None) => None,
            _ => bail!("--certificate and --key belong together"),
        };
        let listen = self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8443)));
        if self.tries && !listen.ip().is_loopback() {
            bail!("--try is for a loopback address");
        }
        let access = match self.clients {
            _ if self.tries => None,
            file => Some(file.unwrap_or_else(|| CLIENTS.into())),
        };
        if !self.tag.is_empty() {
            bail!("--tag is for clients: client add-token NAME --role ROLE --tag TAG");
        }
        let tags = Some(self.tags.unwrap_or_else(|| TAGS.into()));
        let socket = self.socket.unwrap_or_else(api::client::socket_path);
        let rate = self.rate.unwrap_or(RATE).max(1);
        if self.otlp_ca.is_some() && self.otlp.is_none() {
            bail!("give --otlp");
        }
        let oidc = self.oidc.settings(self.origin)?;
        let collector = self.otlp.map(|it| Collector { ca: self.otlp_ca, ..it });
        let (log, labels) = (self.log, self.labels);
        let (tries, prints) = (self.tries, self.prints);
        // Whoever tries it out tries all of it.
        let xenapi = self.xenapi || tries;
        Ok(Command::Serve(Box::new(Serve {
            listen,
            tls,
            access,
            tags,
            log,
            socket,
            tries,
            xenapi,
            labels,
            rate,
            collector,
            oidc,
            prints,
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Command> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn arguments_that_make_no_sense_are_refused() {
        for (line, expected) in [
            ("--listen web", "\"web\" is no address with a port"),
            ("--certificate a", "--certificate and --key belong together"),
            ("--make-certificate", "give --certificate and --key"),
            ("--try --listen 0.0.0.0:80", "--try is for a loopback address"),
            ("--otlp otel", "\"otel\" is no URL of http or https"),
            ("--otlp-ca a", "give --otlp"),
            ("--frob", "there is no option --frob; see --help"),
            ("frob", "\"frob\" is nothing to do; see --help"),
            ("client add-token a", "say what it may do: --role viewer, operator or admin"),
            (
                "client add-token a --role root",
                "\"root\" is no role; there are viewer, operator and admin",
            ),
            ("client add-certificate a --role viewer", "give --certificate FILE"),
            ("tag add web", "tag \"add web\" is nothing to do; see --help"),
            ("--oidc-issuer https://id", "give --oidc-client-id"),
            (
                "--origin https://xen1",
                "give --oidc-issuer: what else was given is for logging in there",
            ),
            (
                "--oidc-issuer https://id --oidc-client-id a --oidc-client-secret-file b",
                "give --origin: where browsers find this host",
            ),
            ("--tag a", "--tag is for clients: client add-token NAME --role ROLE --tag TAG"),
        ] {
            assert_eq!(of(line).unwrap_err().to_string(), expected, "{line}");
        }
        let Command::Serve(serve) = of("--try").unwrap() else { panic!("it serves") };
        assert!(serve.tries && serve.access.is_none() && serve.tls.is_none());
        let Command::Serve(serve) = of("").unwrap() else { panic!("it serves") };
        assert_eq!(serve.access, Some(CLIENTS.into()));
        let line = "client add-token a --role viewer --tag y --tag x";
        let Command::Clients { what: Change::AddToken(new), .. } = of(line).unwrap() else {
            panic!("it adds one")
        };
        assert_eq!(new.scope.tags().collect::<Vec<_>>(), ["x", "y"]);
    }
}
