# Networks without scripts: Open vSwitch by its database, routes, NAT, and guests that send from addresses of others.
# lab-addition: nft
# lab-addition: openvswitch
. /lab/lib.sh
modprobe -a nf_tables nft_chain_nat nft_masq veth openvswitch || fail "no networks"
start_xylemd

# The shell's own ip knows no namespaces.
ip() { /usr/sbin/ip "$@"; }

echo "== a network that knows nothing of the guests"
ip netns add outside
ip link add outer type veth peer name inner netns outside
ip addr add 192.0.2.1/24 dev outer
ip link set dev outer up
ip netns exec outside ip addr add 192.0.2.2/24 dev inner
ip netns exec outside ip link set dev inner up
echo 1 >/proc/sys/net/ipv4/ip_forward

echo "== Open vSwitch"
mkdir -p /run/openvswitch /etc/openvswitch /var/log/openvswitch
export PATH="$PATH:/usr/lib/openvswitch-switch"
unikernel_cfg early "type = 'pvh'" "vif = ['script=vif-openvswitch,bridge=ovs0']"
check "without it a start is refused" refused_with "Open vSwitch does not run on this host" xy create -q /tmp/early.cfg
ovsdb-tool create /etc/openvswitch/conf.db /usr/share/openvswitch/vswitch.ovsschema
ovsdb-server /etc/openvswitch/conf.db --remote=punix:/run/openvswitch/db.sock >/tmp/ovsdb.log 2>&1 &
wait_for 'ovs-vsctl --timeout=5 --no-wait init' 30 || fail "no database: $(cat /tmp/ovsdb.log)"
ovs-vswitchd >/tmp/vswitchd.log 2>&1 &
check "without the bridge, too" refused_with "no bridge named ovs0 in Open vSwitch" xy create -q /tmp/early.cfg
check "it has a bridge" ovs-vsctl --timeout=60 add-br ovs0
ovs-vsctl --timeout=60 add-port ovs0 inside tag=10 -- set interface inside type=internal
host_state >/results/state.before
network_state() {
    ovs-vsctl --timeout=60 list-ports ovs0
    nft list ruleset | grep -E 'chain vif|elements'
    ip route | grep vif
}
network_state >/results/networks.before

# guest NAME WORDS VIF: a Linux guest with these words more on its command line. Of type pv, as QEMU's SVM disturbs PVH guests beside a
# busy dom0 now and then.
guest() {
    lab_words=$2
    lab_vif=$3
    linux_cfg "$1" "type = 'pv'" "memory = 192" "extra = 'console=hvc0 quiet $FAST_BOOT $lab_words'" "vif = ['$lab_vif']"
    check "create $1" xy create -q "/tmp/$1.cfg"
}
nothing_left() {
    check "nothing is left" same_state /results/state.before
    network_state >/tmp/networks.now
    check "and no port, rule or route" diff /results/networks.before /tmp/networks.now
}

echo "== a port of a VLAN, beside xl's"
ip addr del 10.0.0.1/24 dev xenbr0
ip addr add 10.0.0.1/24 dev inside
ip link set dev inside up
guest port xylem.ip=10.0.0.7 mac=00:16:3e:00:00:07,script=vif-openvswitch,bridge=ovs0.10
check "it reaches the VLAN" console_wait port 'XYLEM-GUEST: network=ok' 200 || { tail /tmp/vswitchd.log; ovs-vsctl show; }
domid=$(xy domid port)
ours=$(ovs-vsctl --timeout=60 --bare --columns=name,tag,trunks list port "vif$domid.0" | sed "s/vif$domid/vifN/")
ids=$(ovs-vsctl --timeout=60 --bare --columns=external_ids list interface "vif$domid.0")
echo "$ours $ids"
check "destroy" xy destroy port
unikernel_cfg trunk "type = 'pv'" "uuid = '0c7f5eae-9a2e-4fd1-8b1d-2d1e5d3f1a01'" \
    "vif = ['mac=00:16:3e:00:00:07,script=vif-openvswitch,bridge=ovs0.10:20:30']"
port_row() {
    ovs-vsctl --timeout=60 --bare --columns=name,tag,trunks list port "vif$1.0" | sed "s/vif$1/vifN/"
    ovs-vsctl --timeout=60 --bare --columns=external_ids list interface "vif$1.0"
}
check "create trunk" xy create -q /tmp/trunk.cfg
port_row "$(xy domid trunk)" >/tmp/row.ours
check "destroy" xy destroy trunk
nothing_left
check "xl creates it" xl create -q /tmp/trunk.cfg
domid=$(xl domid trunk)
port_row "$domid" >/tmp/row.xl
check "xl's port is as ours" diff /tmp/row.xl /tmp/row.ours
check "adopt it" xy adopt trunk
check "destroy it" xy destroy trunk
check "its port is gone" [ "$(ovs-vsctl --timeout=60 list-ports ovs0)" = inside ]
nothing_left

echo "== a port that comes and goes while the guest runs"
unikernel_cfg plain "type = 'pvh'" "vif = ['bridge=xenbr0']"
check "create plain" xy create -q /tmp/plain.cfg
check "attach" xy network-attach plain script=vif-openvswitch,bridge=ovs0,vifname=later
check "it is a port" grep -qx later <<PORTS
$(ovs-vsctl --timeout=60 list-ports ovs0)
PORTS
check "detach" xy network-detach plain 1
check "destroy" xy destroy plain
nothing_left
ip addr del 10.0.0.1/24 dev inside
ip addr add 10.0.0.1/24 dev xenbr0

echo "== routes"
guest routed "xylem.ip=10.0.0.7 xylem.spoof=10.0.0.9" script=vif-route,ip=10.0.0.7,gatewaydev=xenbr0,antispoof=1,mac=00:16:3e:00:00:08
domid=$(xy domid routed)
ip addr show dev "vif$domid.0"
ip route
check "there is a route" grep -q "^10.0.0.7 dev vif$domid.0 scope link src 10.0.0.1 metric 2" <<ROUTES
$(ip route)
ROUTES
check "the guest reaches us" console_wait routed 'XYLEM-GUEST: network=ok' 200
check "it has said all" console_wait routed 'XYLEM-GUEST: own=' 60
check "not from another address" guest_says routed spoof_ip=unanswered
check "not from another MAC address" guest_says routed spoof_mac=unanswered
check "but from its own" guest_says routed own=answered
nft list table netdev xylem
linux_cfg again "type = 'pv'" "memory = 192" "vif = ['script=vif-route,ip=10.0.0.7,gatewaydev=xenbr0']"
check "another guest cannot have its address" refused_with "another route goes to 10.0.0.7/32" xy create -q /tmp/again.cfg
check "reboot" xy reboot -w routed
check "the guest reaches us again" console_wait routed 'XYLEM-GUEST: network=ok' 200
check "destroy" xy destroy routed
nft list ruleset
nothing_left

echo "== a bridge"
guest bridged "xylem.ip=10.0.0.7 xylem.spoof=10.0.0.9" bridge=xenbr0,ip=10.0.0.7,antispoof=1
check "it has said all" console_wait bridged 'XYLEM-GUEST: own=' 200
check "not from another address" guest_says bridged spoof_ip=unanswered
check "not from another MAC address" guest_says bridged spoof_mac=unanswered
check "but from its own" guest_says bridged own=answered
check "destroy" xy destroy bridged
guest free "xylem.ip=10.0.0.7 xylem.spoof=10.0.0.9" bridge=xenbr0
check "it has said all" console_wait free 'XYLEM-GUEST: own=' 200
check "who may send anything is answered" guest_says free spoof_ip=answered
check "from any MAC address, too" guest_says free spoof_mac=answered
check "destroy" xy destroy free
nothing_left

echo "== IPv6 addresses"
unikernel_cfg six "type = 'pvh'" "vif = ['ip=2001:db8::7 2001:db8:1::/48 10.0.0.7,antispoof=1']"
check "nft takes the rules" xy create -q /tmp/six.cfg
nft list table netdev xylem
check "advertisements are looked at" grep -q "nd-neighbor-advert jump" <<RULES
$(nft list table netdev xylem)
RULES
check "destroy" xy destroy six
nothing_left

echo "== NAT"
guest hidden "xylem.ip=10.7.0.1 xylem.gateway=10.7.0.128" script=vif-nat,ip=10.7.0.1/24,antispoof=1
check "it reaches a network that does not know it" console_wait hidden 'XYLEM-GUEST: outside=ok' 200 || { ip addr; ip route; nft list ruleset; }
check "destroy" xy destroy hidden
check "its address is translated no more" [ "$(nft list set ip xylem behind_nat | grep -c 10.7.0.1)" = 0 ]
nothing_left
