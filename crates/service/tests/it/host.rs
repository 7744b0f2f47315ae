//! Xen and the machine as a whole: its messages, topology and CPU pools.

use api::{Answer, Create, HostRequest, PoolRow, Reply, Request, Target};
use sim::{HostConfig, MachineConfig};
use xenstore::client::Nodes as _;

use crate::door::Client;

/// Four CPUs in two NUMA nodes.
fn client(seed: u64) -> Client {
    with_dom0(seed, 2)
}

fn with_dom0(seed: u64, vcpus: u32) -> Client {
    let dom0_vcpus = Some(vcpus);
    let machine = MachineConfig { cpus: 4, nodes: 2, dom0_vcpus, ..MachineConfig::default() };
    Client::on(HostConfig { seed, machine, ..HostConfig::default() })
}

fn ask(client: &Client, request: HostRequest) -> Result<Reply, String> {
    client.ask(Request::Host(request))
}

/// `NAME SCHEDULER CPUS DOMAINS` of each pool.
fn pools(client: &Client) -> Vec<String> {
    let Ok(Reply::Pools(rows)) = ask(client, HostRequest::Pools) else { panic!() };
    let line = |PoolRow { id, name, scheduler, cpus, domains }| {
        format!("{id} {} {scheduler} {cpus:?} {domains}", name.unwrap_or_default())
    };
    rows.into_iter().map(line).collect()
}

fn create(client: &Client, text: &str, dry_run: bool) -> Result<Reply, String> {
    let (file, text) = ("/etc/xen/lab".to_owned(), text.to_owned());
    ask(client, HostRequest::PoolCreate { file, text, overrides: Vec::new(), dry_run })
}

fn remove(client: &Client, pool: &str, cpus: &str) -> Result<Reply, String> {
    ask(client, HostRequest::PoolRemove { pool: pool.to_owned(), cpus: cpus.to_owned() })
}

fn add(client: &Client, pool: &str, cpus: &str) -> Result<Reply, String> {
    ask(client, HostRequest::PoolAdd { pool: pool.to_owned(), cpus: cpus.to_owned() })
}

fn warnings(client: &Client) -> Vec<String> {
    let line = |answer| match answer {
        Answer::Warning(line) => line,
        other => panic!("{other:?}"),
    };
    client.heard().into_iter().map(line).collect()
}

fn start(client: &Client, name: &str) {
    let config_text = format!("name='{name}'\nkernel='kernel'\nramdisk='initrd'\nmemory=16\n");
    let (file, cwd) = (format!("{name}.cfg"), "/vm".to_owned());
    let create = Create { file, config_text, cwd, ..Create::default() };
    client.ask(Request::Create(create)).unwrap();
}

#[test]
fn a_pool_gets_free_cpus_and_domains_and_is_named_in_the_store() {
    let client = client(1);
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 2, 3] 1"]);
    let not_free = create(&client, "cpus='2'", false).unwrap_err();
    assert!(
        not_free.starts_with("lab: CPU 2 is none of the machine's or not free; "),
        "{not_free}"
    );
    assert_eq!(remove(&client, "Pool-0", "node:1,^3"), Ok(Reply::Done));
    create(&client, "cpus=['2']", true).unwrap();
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 3] 1"]);
    create(&client, "cpus=['2']", false).unwrap();
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 3] 1", "1 lab credit2 [2] 0"]);
    let mut store = client.host.connect_inside();
    assert_eq!(store.read("/local/pool/1/name").unwrap(), b"lab");
    assert_eq!(store.read("/local/pool/1/uuid").unwrap().len(), 36);
    let taken = create(&client, "", false).unwrap_err();
    assert_eq!(taken, "lab: is the name of pool 1 already");

    start(&client, "web");
    let migrate = |target: &str, pool: &str| {
        let (target, pool) = (Target(target.to_owned()), pool.to_owned());
        ask(&client, HostRequest::PoolMigrate { target, pool })
    };
    assert_eq!(migrate("web", "lab"), Ok(Reply::Done));
    assert_eq!(pools(&client)[1], "1 lab credit2 [2] 1");
    assert_eq!(migrate("0", "lab").unwrap_err(), "Domain-0: stays in its pool");
    assert_eq!(
        migrate("web", "none").unwrap_err(),
        "none: no such CPU pool; `xy cpupool-list` shows them all"
    );
    let full = ask(&client, HostRequest::PoolDestroy { pool: "lab".to_owned() }).unwrap_err();
    assert_eq!(full, "lab: has 1 domains; move them with `xy cpupool-migrate`");
    assert_eq!(warnings(&client), [""; 0]);
    remove(&client, "lab", "2").unwrap();
    assert_eq!(
        warnings(&client),
        ["CPU 2 stays in lab: it is the last one, and there are domains in the pool"]
    );
    add(&client, "1", "all").unwrap();
    assert_eq!(warnings(&client).len(), 4);
    add(&client, "1", "9").unwrap();
    assert_eq!(warnings(&client), ["CPU 9 is not added to 1: the machine has no such CPU"]);

    migrate("web", "0").unwrap();
    let rename = |pool: &str, name: &str| {
        let (pool, name) = (pool.to_owned(), name.to_owned());
        ask(&client, HostRequest::PoolRename { pool, name })
    };
    assert_eq!(rename("lab", "b"), Ok(Reply::Done));
    assert_eq!(rename("0", "b").unwrap_err(), "b: is the name of pool 1 already");
    assert!(rename("0", "7").unwrap_err().contains("would be read as a pool's number"));
    assert_eq!(ask(&client, HostRequest::PoolDestroy { pool: "b".to_owned() }), Ok(Reply::Done));
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 3] 2"]);
    assert!(store.read("/local/pool/1").is_err());
    let logged = client.logged();
    let is_told = |text: &str| logged.iter().any(|line| line.contains(text));
    assert!(is_told("cpupool-create") && is_told("cpupool-destroy"), "{logged:?}");
}

#[test]
fn nothing_is_left_of_a_pool_that_cannot_be_made() {
    let client = client(2);
    remove(&client, "Pool-0", "3").unwrap();
    assert_eq!(
        create(&client, "sched='arinc653'", false).unwrap_err(),
        "lab: this Xen has no scheduler arinc653"
    );
    assert!(create(&client, "nodes=['0']", false).unwrap_err().contains("no CPU of these nodes"));
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 2] 1"]);
    create(&client, "nodes=['0','1']", false).unwrap();
    assert_eq!(pools(&client)[1], "1 lab credit2 [3] 0");
}

#[test]
fn a_machine_is_split_into_a_pool_for_each_node() {
    let client = client(3);
    assert_eq!(ask(&client, HostRequest::PoolSplit), Ok(Reply::Done));
    let split = ["0 Pool-node0 credit2 [0, 1] 1", "1 Pool-node1 credit2 [2, 3] 0"];
    assert_eq!(pools(&client), split);
    let again = ask(&client, HostRequest::PoolSplit).unwrap_err();
    assert_eq!(again, "cannot split: there are several CPU pools already");
    assert_eq!(pools(&client), split);
}

#[test]
fn a_split_would_leave_dom0_enough_cpus() {
    let client = with_dom0(5, 3);
    let refused = ask(&client, HostRequest::PoolSplit).unwrap_err();
    let begin = "cannot split: Domain-0 has 3 vCPUs online, and node 0 only 2 CPUs; ";
    assert!(refused.starts_with(begin), "{refused}");
    assert_eq!(pools(&client), ["0 Pool-0 credit2 [0, 1, 2, 3] 1"]);
}

#[test]
fn messages_and_topology_are_those_of_xen() {
    let client = client(4);
    for clear in [false, true] {
        let Ok(Reply::Text(text)) = ask(&client, HostRequest::Console { clear }) else { panic!() };
        assert!(text.starts_with("(XEN) ") && text.ends_with("***\n"), "{text:?}");
    }
    let Ok(Reply::Text(text)) = ask(&client, HostRequest::Console { clear: false }) else {
        panic!()
    };
    assert_eq!(text, "");
    assert_eq!(ask(&client, HostRequest::DebugKeys { keys: "qr".to_owned() }), Ok(Reply::Done));
    let pci = vec!["0000:00:1f.2".to_owned()];
    let Ok(Reply::Topology(topology)) = ask(&client, HostRequest::Topology { pci }) else {
        panic!()
    };
    let nodes: Vec<_> = topology.cpus.iter().map(|row| row.node).collect();
    assert_eq!(nodes, [0, 0, 1, 1]);
    let distances: Vec<_> = topology.nodes.iter().map(|row| row.distances.clone()).collect();
    assert_eq!(distances, [[10, 21], [21, 10]]);
    assert!(topology.pci.is_empty());
    start(&client, "web");
    let request = HostRequest::NodeAffinity { domids: vec![0, 1, 77] };
    let Ok(Reply::NodeAffinity(nodes)) = ask(&client, request) else { panic!() };
    assert_eq!(nodes.keys().copied().collect::<Vec<_>>(), [0, 1]);
}

fn set_parameters(client: &Client, text: &str) -> Result<Reply, String> {
    ask(client, HostRequest::SetParameters { text: text.to_owned() })
}

#[test]
fn parameters_of_xen_are_set_in_their_own_type() {
    let client = client(5);
    assert_eq!(
        set_parameters(&client, "gnttab_max_frames=0x80  guest_loglvl=none/all"),
        Ok(Reply::Done)
    );
    let parameter = |name: &str| client.host.machine().get().parameter(name).to_vec();
    assert_eq!(parameter("gnttab_max_frames"), [128, 0, 0, 0]);
    assert_eq!(parameter("guest_loglvl"), b"none/all\0");
    let long = "x".repeat(2000);
    for (text, why) in [
        ("com1=9600", "cannot set com1: Xen does not change it while it runs".to_owned()),
        (
            "gnttab_max_frames=many",
            "cannot set gnttab_max_frames: \"many\" is no value of it".to_owned(),
        ),
        (
            "nonsense=1",
            "cannot set nonsense: Xen has no parameter of this name that it shows".to_owned(),
        ),
        ("noept", "cannot set ept: Xen has no parameter of this name that it shows".to_owned()),
        ("ept", "ept: has no value; write ept=VALUE or noept".to_owned()),
        (
            &*format!("{long}=1"),
            format!("cannot set {long}: Xen has no parameter of this name that it shows"),
        ),
    ] {
        assert_eq!(set_parameters(&client, text).unwrap_err(), why);
    }
    // The first is set all the same, as by xl.
    set_parameters(&client, "gnttab_max_frames=7 com1=9600").unwrap_err();
    assert_eq!(parameter("gnttab_max_frames"), [7, 0, 0, 0]);
    let logged = client.logged();
    let deed = "set parameters \"gnttab_max_frames=7 com1=9600\" of";
    assert!(logged.iter().any(|line| line.contains(deed)), "{logged:?}");
}

#[test]
fn the_security_module_is_told_its_mode_and_its_policy() {
    let load = |client: &Client, policy: &str| {
        ask(client, HostRequest::LoadPolicy { policy: policy.to_owned() })
    };
    let machine = MachineConfig { has_flask: true, ..MachineConfig::default() };
    let client = Client::on(HostConfig { seed: 6, machine, ..HostConfig::default() });
    assert_eq!(ask(&client, HostRequest::Enforcing), Ok(Reply::Enforcing(Some(true))));
    for enforcing in [false, true] {
        assert_eq!(ask(&client, HostRequest::SetEnforcing { enforcing }), Ok(Reply::Done));
        assert_eq!(ask(&client, HostRequest::Enforcing), Ok(Reply::Enforcing(Some(enforcing))));
    }
    assert_eq!(load(&client, "8cff7cf9000102ff"), Ok(Reply::Done));
    let policy = client.host.machine().get().flask_policy().to_vec();
    assert_eq!(policy, [0x8c, 0xff, 0x7c, 0xf9, 0, 1, 2, 0xff]);
    let refused = load(&client, "00").unwrap_err();
    assert_eq!(refused, "Xen does not take it as a policy of Flask");
    assert_eq!(load(&client, "0").unwrap_err(), "a policy is sent as digits");
    assert_eq!(load(&client, "é").unwrap_err(), "a policy is sent as digits");

    let client = self::client(7);
    assert_eq!(ask(&client, HostRequest::Enforcing), Ok(Reply::Enforcing(None)));
    let refused = ask(&client, HostRequest::SetEnforcing { enforcing: true }).unwrap_err();
    assert_eq!(refused, "Xen runs without the security module Flask");
    assert_eq!(load(&client, "8cff7cf9").unwrap_err(), refused);
}
