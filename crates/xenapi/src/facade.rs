//! The façade: calls in; answers, requests to the daemon and waits out.
//!
//! ```text
//!   call ──> Reply                      done
//!        ──> Authenticate ──> authenticated
//!        ──> Ask ──> answered ──> Reply, or Wait until the model shows it
//!        ──> Wait ──> woken ──> Reply, or Wait again
//!        ──> Started: the answer is a task, and the work goes on as any of these
//! ```
//!
//! The shell asks the daemon, keeps time and draws random numbers; it needs to know nothing of XenAPI.

use api::{Objects as Page, REPLACED, Reply, Request, Role, StorageRequest};
use live::Revision;
use serde_json::Value as Json;
use xen::Uuid;

use crate::calls::{self, Change, Chosen};
use crate::events::Following;
use crate::failure::Failure;
use crate::labels::Labels;
use crate::mirror::{Dirty, Mirror};
use crate::model::Class;
use crate::objects::{Group, Key, Objects, Records};
use crate::polls::Polls;
use crate::records::{Shown, View, checkpoint_uuid, console_uuid};
use crate::refs::{opaque, uuid_in};
use crate::rpc::Call;
use crate::session::{Session, Sessions};
use crate::settle::Settled;
use crate::tasks::{Status, Tasks, share};
use crate::value::{Answer, Value};

/// What the shell knows of this host.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The same for ever: references to the host and to what has no UUID of its own follow from it.
    pub host: Uuid,
    pub hostname: String,
    /// What clients take for the host's; some ask it for consoles and the like at the usual port of HTTPS.
    pub address: String,
    /// The same as it is in a URL, with the port if that is another one.
    pub authority: String,
    pub release: String,
    /// When the shell began, and when the host did.
    pub started_unix_s: u64,
    pub booted_unix_s: u64,
}

/// When a call comes, and a UUID that nobody can guess.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub unix_ms: u64,
    pub fresh: Uuid,
}

/// Who says to be whom.
#[derive(Clone, Eq, PartialEq)]
pub struct Login {
    pub name: String,
    pub password: String,
    pub originator: String,
    id: Uuid,
}

impl core::fmt::Debug for Login {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Login").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Requests to the daemon, each after the one before it has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct Asking {
    pub requests: Vec<Request>,
    /// The caller, as the daemon's log is to name it.
    pub who: String,
    pub role: Role,
    /// What is asked for is about this object.
    pub(crate) about: Option<Key>,
    pub(crate) then: Then,
    pub(crate) task: Option<Uuid>,
    /// What takes away again what was made so far, if the rest fails.
    pub(crate) made: Vec<Request>,
}

/// What follows once the daemon has done it all.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Then {
    /// The value, as soon as the model shows what was done.
    Settle(Settled, Value),
    /// The checkpoint of this VM, whose name the daemon has told, and what the client calls it.
    Checkpointed(Uuid, String),
    /// The text that the daemon has told.
    Text,
    /// The VM is defined again with these changes of its configuration, which the daemon has told.
    Define(Redefine, Box<Then>),
    /// That was asked for. It begins anew if the definition is another one by then.
    Defined(Redefine, Box<Then>),
    /// More is asked for.
    Ask(Vec<Request>, Box<Then>),
    /// It has failed, and what was made for it is gone again.
    Fail(Failure),
}

/// A VM that is defined again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Redefine {
    vm: Uuid,
    changes: Vec<Change>,
    /// It may begin anew so many times.
    tries: u32,
}

impl Redefine {
    pub(crate) fn new(vm: Uuid, changes: Vec<Change>) -> Self {
        Self { vm, changes, tries: REDEFINES_MAX }
    }
}

/// A wait for changes of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// To be woken then, if not before.
    pub deadline_unix_ms: u64,
    pub(crate) what: Awaited,
    pub(crate) task: Option<Uuid>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Awaited {
    Settled(Settled, Value),
    Events(Following),
}

/// What comes of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Reply(Answer),
    /// To be given to [`Facade::authenticated`].
    Authenticate(Login),
    /// To be given to [`Facade::answered`].
    Ask(Asking),
    /// To be given to [`Facade::woken`], after each change of [`Facade::revision`] or at its deadline.
    Wait(Waiting),
    /// The client is answered with the task. The work goes on, and nobody waits for its reply.
    Started {
        task: Value,
        work: Box<Outcome>,
    },
}

/// What takes away what a request has made.
fn undo_of(request: &Request) -> Option<Request> {
    let Request::Storage(StorageRequest::VdiClone { vdi, to }) = request else { return None };
    let (sr, _) = vdi.split_once(':')?;
    Some(Request::Storage(StorageRequest::VdiDestroy { vdi: format!("{sr}:{to}") }))
}

/// How a handler ends.
#[derive(Debug)]
pub(crate) enum Step {
    Value(Value),
    Ask(Vec<Request>, Then),
    Events(Following, u64),
}

impl Step {
    pub(crate) fn void() -> Result<Self, Failure> {
        Ok(Self::Value(Value::void()))
    }
}

/// A definition that is another one each time is one that somebody changes all the time.
const REDEFINES_MAX: u32 = 100;

/// The model is given so long to show what was done.
pub(crate) const SETTLE_MS: u64 = 3000;

#[derive(Debug)]
pub struct Facade {
    pub(crate) identity: Identity,
    pub(crate) mirror: Mirror,
    pub(crate) labels: Labels,
    pub(crate) tasks: Tasks,
    pub(crate) sessions: Sessions,
    pub(crate) objects: Objects,
    pub(crate) is_enabled: bool,
    pub(crate) chosen: Chosen,
    polls: Polls,
    /// Everything that the model does not tell was asked for once.
    is_asked: bool,
}

impl Facade {
    /// Revisions begin above `revision`, which has to be larger than any that an earlier process came to, such as the
    /// time in microseconds. `kept` are the labels of that process.
    #[must_use]
    pub fn new(identity: Identity, revision: u64, kept: &Json) -> Self {
        let mut facade = Self {
            identity,
            mirror: Mirror::default(),
            labels: Labels::import(kept),
            tasks: Tasks::default(),
            sessions: Sessions::default(),
            objects: Objects::after(Revision(revision)),
            is_enabled: true,
            chosen: Chosen::default(),
            polls: Polls::new(),
            is_asked: false,
        };
        let all = Dirty { host: true, storage: true, networks: true, ..Dirty::default() };
        facade.refresh(all);
        facade
    }

    /// Of the last change: whoever waits is woken when it is another one.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.objects.revision().0
    }

    /// The labels, to be kept for the next process, and a number that is raised when they change.
    #[must_use]
    pub fn labels(&self) -> (u64, Json) {
        (self.labels.revision, self.labels.export())
    }

    /// The number alone.
    #[must_use]
    pub fn labels_revision(&self) -> u64 {
        self.labels.revision
    }

    /// What follows the daemon's live model: the answer goes to [`Facade::learn`], and the next such request is for what
    /// comes then.
    #[must_use]
    pub fn follow(&self) -> Request {
        let cursor = self.mirror.cursor.clone();
        Request::Objects { cursor, classes: Vec::new(), wait: true }
    }

    /// A question to the daemon whose time has come; the answer goes to [`Facade::learn`].
    pub fn due(&mut self, now_unix_ms: u64) -> Option<Request> {
        let due = self.polls.due(now_unix_ms);
        // What is asked of each VM comes last.
        let is_of_host =
            !matches!(due, None | Some(Request::Uptime { .. } | Request::NetworkList { .. }));
        self.is_asked |= self.mirror.is_whole && !is_of_host;
        due
    }

    /// Whether calls about objects are answered; they fail with `HOST_STILL_BOOTING` before.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.mirror.is_whole
    }

    /// Whether what the live model does not tell, such as VDIs, is known too, as far as the daemon tells it.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.is_asked
    }

    /// What the daemon has answered.
    pub fn learn(&mut self, request: &Request, reply: &Reply) {
        let mut dirty = self.mirror.learn(request, reply);
        if let Request::Storage(StorageRequest::VdiDestroy { vdi }) = request {
            dirty.vms.extend(self.labels.forget_disk(vdi));
        }
        self.refresh(dirty);
    }

    /// A page of the live model.
    pub fn apply(&mut self, page: Page) {
        let dirty = self.mirror.apply(page);
        self.refresh(dirty);
    }

    pub fn call(&mut self, call: &Call, moment: &Moment) -> Outcome {
        calls::call(self, call, moment).unwrap_or_else(|failure| Outcome::Reply(Err(failure)))
    }

    /// Whether that was right: the user's name and role, or nothing.
    pub fn authenticated(
        &mut self,
        login: Login,
        user: Option<(String, Role)>,
        moment: &Moment,
    ) -> Outcome {
        let Some((who, role)) = user else {
            let about = [login.name.as_str(), "Authentication failure"];
            return Outcome::Reply(Err(Failure::new("SESSION_AUTHENTICATION_FAILED", about)));
        };
        let reference = self.sessions.begin(Session {
            id: login.id,
            who,
            role,
            originator: login.originator,
            began_unix_ms: moment.unix_ms,
            last_active_unix_ms: moment.unix_ms,
        });
        Outcome::Reply(Ok(reference.into()))
    }

    pub(crate) fn login(name: &str, password: &str, originator: &str, moment: &Moment) -> Login {
        Login {
            name: name.to_owned(),
            password: password.to_owned(),
            originator: originator.to_owned(),
            id: moment.fresh,
        }
    }

    /// What the daemon has answered to these requests, as far as it came: the last is an error, or there are as many as
    /// requests.
    pub fn answered(
        &mut self,
        mut asking: Asking,
        replies: Vec<Result<Reply, String>>,
        now_unix_ms: u64,
    ) -> Outcome {
        // What follows now is said anew each time.
        let then = std::mem::replace(&mut asking.then, Then::Text);
        if let Then::Fail(failure) = then {
            return self.end(asking.task, Err(failure), now_unix_ms);
        }
        let requests = std::mem::take(&mut asking.requests);
        let is_whole = replies.len() == requests.len();
        let mut last = None;
        for (request, reply) in requests.iter().zip(replies) {
            match reply {
                Ok(reply) => {
                    asking.made.extend(undo_of(request));
                    self.learn(request, &reply);
                    // What is listed afterwards is for us, not for the client.
                    let is_ours = matches!(reply, Reply::Vdis(_) | Reply::Checkpoints(_));
                    last = if is_ours { last } else { Some(reply) };
                }
                Err(text) => {
                    return match then {
                        Then::Defined(it, then) if it.tries > 0 && text.contains(REPLACED) => {
                            let requests = vec![calls::text_of(it.vm)];
                            let it = Redefine { tries: it.tries - 1, ..it };
                            let then = Then::Define(it, then);
                            Outcome::Ask(Asking { requests, then, ..asking })
                        }
                        _ => {
                            let failure = calls::refused(&text, asking.about);
                            self.fail(asking, failure, now_unix_ms)
                        }
                    };
                }
            }
        }
        if !is_whole {
            let failure = Failure::internal("xylemd gave no answer");
            return self.end(asking.task, Err(failure), now_unix_ms);
        }
        let then = match then {
            Then::Defined(_, then) => *then,
            other => other,
        };
        let (settled, value) = match (then, last) {
            (Then::Define(it, then), Some(Reply::Text(text))) => {
                return match self.define(it.vm, text, &it.changes) {
                    Ok(request) => {
                        let (requests, then) = (vec![request], Then::Defined(it, then));
                        Outcome::Ask(Asking { requests, then, ..asking })
                    }
                    Err(failure) => self.fail(asking, failure, now_unix_ms),
                };
            }
            (Then::Ask(requests, then), _) => {
                return Outcome::Ask(Asking { requests, then: *then, ..asking });
            }
            (then, last) => self.follow_up(then, last),
        };
        let deadline_unix_ms = now_unix_ms + SETTLE_MS;
        let what = Awaited::Settled(settled, value);
        self.woken(Waiting { deadline_unix_ms, what, task: asking.task }, now_unix_ms)
    }

    /// What was made so far is taken away again first.
    fn fail(&mut self, mut asking: Asking, failure: Failure, now_unix_ms: u64) -> Outcome {
        if asking.made.is_empty() {
            return self.end(asking.task, Err(failure), now_unix_ms);
        }
        let requests = std::mem::take(&mut asking.made);
        Outcome::Ask(Asking { requests, then: Then::Fail(failure), ..asking })
    }

    /// Whether the client has given up what is asked for here, which may change with [`Facade::revision`]: the shell hangs
    /// up on the daemon then, and calls it an error.
    #[must_use]
    pub fn is_given_up(&self, asking: &Asking) -> bool {
        let task = asking.task.and_then(|id| self.tasks.get(id));
        task.is_some_and(|it| it.status == Status::Cancelling)
    }

    fn follow_up(&mut self, then: Then, last: Option<Reply>) -> (Settled, Value) {
        match (then, last) {
            (Then::Settle(settled, value), _) => (settled, value),
            (Then::Checkpointed(vm, label), Some(Reply::Checkpointed { name })) => {
                let key = (Class::Vm, checkpoint_uuid(vm, &name));
                if label != name {
                    // It is there all the same if there is no room for that.
                    let _is_full = self.labels.set(key, "name_label", label.into());
                    self.relabel(key);
                }
                (Settled::There(key), opaque(key.1).into())
            }
            (Then::Text, Some(Reply::Text(text))) => (Settled::Now, text.into()),
            _ => (Settled::Now, Value::void()),
        }
    }

    /// The user of a session and the role, for what is served beside calls and gets the session's reference.
    ///
    /// # Errors
    /// There is no such session.
    pub fn user(&mut self, session: &str, now_unix_ms: u64) -> Result<(String, Role), Failure> {
        let session = self.sessions.used(session, now_unix_ms)?;
        Ok((session.who, session.role))
    }

    /// Ends all sessions: nobody is here for them any more.
    pub fn end_sessions(&mut self) {
        self.sessions = Sessions::default();
    }

    /// The VM of a console, by the console's UUID or reference, and what there is to see.
    #[must_use]
    pub fn console(&self, name: &str) -> Option<(Uuid, Shown)> {
        let uuid = name.parse().ok().or_else(|| uuid_in(name))?;
        let record = self.objects.get((Class::Console, uuid))?;
        let vm = record.get("VM").and_then(Value::as_str).and_then(uuid_in)?;
        let shown = Shown::ALL.into_iter().find(|it| console_uuid(vm, *it) == uuid)?;
        Some((vm, shown))
    }

    /// Something has changed, or the time is over.
    pub fn woken(&mut self, waiting: Waiting, now_unix_ms: u64) -> Outcome {
        let is_late = now_unix_ms >= waiting.deadline_unix_ms;
        match &waiting.what {
            // What was done is done, even if nobody shows it.
            Awaited::Settled(settled, value) if is_late || self.is_settled(settled) => {
                let (value, task) = (value.clone(), waiting.task);
                self.end(task, Ok(value), now_unix_ms)
            }
            Awaited::Events(following) if !self.sessions.is_there(following.session) => {
                let reference = opaque(following.session);
                Outcome::Reply(Err(Failure::no_session(&reference)))
            }
            Awaited::Events(following) => match self.events(following, is_late) {
                Some(answer) => Outcome::Reply(answer),
                None => Outcome::Wait(waiting),
            },
            Awaited::Settled(..) => Outcome::Wait(waiting),
        }
    }

    /// The end of a call, and of its task.
    pub(crate) fn end(&mut self, task: Option<Uuid>, answer: Answer, now_unix_ms: u64) -> Outcome {
        if let Some(id) = task {
            let vm = self.tasks.get(id).and_then(|it| it.works_on).map(|(vm, _)| vm);
            self.tasks.end(id, &answer, now_unix_ms);
            let vms = vm.into_iter().collect();
            self.refresh(Dirty { tasks: true, vms, ..Dirty::default() });
        }
        Outcome::Reply(answer)
    }

    pub(crate) fn view(&self) -> View<'_> {
        View {
            mirror: &self.mirror,
            identity: &self.identity,
            labels: &self.labels,
            tasks: &self.tasks,
            is_enabled: self.is_enabled,
        }
    }

    /// Derives again what may have changed.
    pub(crate) fn refresh(&mut self, dirty: Dirty) {
        if !dirty.domains.is_empty() {
            self.polls.want_domains(dirty.domains);
        }
        if !dirty.vifs.is_empty() {
            self.polls.want_macs(self.mirror.without_macs(&dirty.vifs));
        }
        if !dirty.srs.is_empty() {
            let srs = &self.mirror.live.srs;
            self.polls.want_srs(&dirty.srs);
            self.polls.keep_srs(|name| srs.contains_key(name));
            self.mirror.spaces.retain(|name, _| srs.contains_key(name));
        }
        if dirty.tasks {
            self.move_tasks_on();
        }
        for vm in dirty.vms {
            let records = self.view().vm_records(vm);
            if self.mirror.is_whole && records.is_empty() {
                self.labels.forget_devices(vm);
                self.mirror.forget(vm);
            }
            self.replace(Group::Vm(vm), records);
        }
        if dirty.storage {
            self.replace(Group::Storage, self.view().storage_records());
        } else {
            // They are there already, and only their disks are other ones.
            for (key, record) in self.view().vdi_records(&dirty.vdis) {
                if self.objects.has(key) {
                    self.objects.put(key, record);
                }
            }
        }
        if dirty.networks {
            self.replace(Group::Networks, self.view().network_records());
        }
        if dirty.host {
            self.replace(Group::Host, self.view().host_records());
        }
        if dirty.tasks {
            self.replace(Group::Tasks, self.view().task_records());
        }
    }

    fn replace(&mut self, group: Group, records: Records) {
        for key in self.objects.put_group(group, records) {
            self.labels.forget(key);
        }
    }

    fn move_tasks_on(&mut self) {
        for operation in self.mirror.live.operations.values() {
            let Ok(vm) = operation.uuid.parse::<Uuid>() else { continue };
            let ids: Vec<Uuid> = self.tasks.on(vm).map(|(task, _)| task.id).collect();
            for id in ids {
                if let Some(task) = self.tasks.get_mut(id).filter(|it| it.is_under_way()) {
                    // A call may be more than one operation; a share never goes back.
                    task.progress = task.progress.max(share(operation));
                }
            }
        }
    }

    /// An object of this class by its reference.
    pub(crate) fn find(&self, class: Class, reference: &str) -> Result<Uuid, Failure> {
        let uuid = uuid_in(reference).filter(|it| self.objects.has((class, *it)));
        uuid.ok_or_else(|| Failure::no_handle(class, reference))
    }

    /// Puts an object's labels into its record at once.
    pub(crate) fn relabel(&mut self, key: Key) {
        if let Some(record) = self.objects.get(key) {
            let mut record = (**record).clone();
            self.labels.label(key, &mut record);
            self.objects.put(key, record);
        }
    }
}
