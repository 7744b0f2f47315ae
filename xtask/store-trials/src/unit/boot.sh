# Boots a systemd that has the unit and little else. The first process of its own namespaces; what it can write
# to is in memory, but for $1, the folder that it shares with its caller.
set -e
shared=$1
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /mnt
mkdir /mnt/shared
mount --bind "$shared" /mnt/shared
for folder in /etc /usr/sbin; do
    mkdir -p "/mnt/upper$folder" "/mnt/work$folder"
    mount -t overlay overlay -o "lowerdir=$folder,upperdir=/mnt/upper$folder,workdir=/mnt/work$folder" $folder
done
cp /mnt/shared/xylem-xenstored /usr/sbin/xylem-xenstored
for folder in /dev/shm /tmp /var /root /home /run /etc/systemd/system; do
    mount -t tmpfs tmpfs $folder
done
mkdir -p /run/lock /etc/sysusers.d
cp /mnt/shared/xylem-xenstored.sysusers /etc/sysusers.d/xylem-xenstored.conf
systemd-sysusers /etc/sysusers.d/xylem-xenstored.conf
cp /mnt/shared/xylem-xenstored.service /etc/systemd/system/xenstored.service
umount -R /sys/fs/cgroup
mount -o remount,bind,ro /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /

# What a boot does besides is not asked here.
for unit in /lib/systemd/system/sysinit.target.wants/*.service; do
    ln -s /dev/null "/etc/systemd/system/${unit##*/}"
done
for unit in systemd-tmpfiles-clean.timer systemd-tmpfiles-clean.service systemd-tmpfiles-setup.service; do
    ln -sf /dev/null "/etc/systemd/system/$unit"
done
# There is no Xen: a host made of files takes its place.
mkdir /etc/systemd/system/xenstored.service.d
cat >/etc/systemd/system/xenstored.service.d/host.conf <<CONFIG
[Unit]
ConditionPathExists=
[Service]
ExecStart=
ExecStart=$(sed -n 's/^ExecStart=//p' /mnt/shared/xylem-xenstored.service) --host dir:/mnt/shared/host
ReadWritePaths=/mnt/shared/host
StandardOutput=append:/mnt/shared/output
StandardError=append:/mnt/shared/output
CONFIG
cat >/etc/systemd/system/host.target <<CONFIG
[Unit]
Description=A host with a store and nothing else
DefaultDependencies=no
Requires=xenstored.service
After=xenstored.service
CONFIG
exec env -i container=other PATH="$PATH" /lib/systemd/systemd --system --unit=host.target --log-target=console
