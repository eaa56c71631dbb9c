# What a host's init does (run by unshare in new namespaces; see host.py). It stays bash, which reaps orphans and
# starts sshd again if a test kills it. What the host must find again after mounts hide it is bound under
# /run/bed first. Environment: H the host's directory, NAME, SHM, OWN_TMP, SHARED.
read -r pid rest < /proc/self/stat   # the old /proc still tells the pid that the machine sees
set -eu
hostname "$NAME"
mount --rbind /sys/fs/cgroup /mnt && cgroup=1 || cgroup=0
mount -t sysfs sysfs /sys
[ $cgroup = 0 ] || { mount --rbind /mnt /sys/fs/cgroup; umount -l /mnt; }
mount --bind "$H" /mnt
mkdir -p /mnt/stage
i=0
for path in $SHARED; do
  i=$((i + 1)); mkdir -p "/mnt/stage/$i"; mount --rbind "$path" "/mnt/stage/$i"
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/sshd /run/lock /run/bed
mount --rbind /mnt /run/bed
umount -l /mnt
mount -t proc proc /proc
mount -t tmpfs -o "size=$SHM,mode=1777" tmpfs /dev/shm
for file in hosts hostname passwd group resolv.conf; do
  target=$(readlink -m "/etc/$file")
  mkdir -p "${target%/*}"
  [ -e "$target" ] || : > "$target"
  mount --bind "/run/bed/etc/$file" "$target"
done
for dir in /home/*/; do
  case $dir in
    /home/trainer/|'/home/*/') ;;
    *) mkdir -p "/run/bed$dir"; mount --rbind "$dir" "/run/bed$dir" ;;
  esac
done
mount --rbind /run/bed/home /home
mount --rbind /run/bed/root /root
[ -z "$OWN_TMP" ] || mount -t tmpfs -o mode=1777 tmpfs /tmp
i=0
for path in $SHARED; do
  i=$((i + 1))
  case $path in
    /root/*|/home/*|/tmp/*) mkdir -p "$path"; mount --rbind "/run/bed/stage/$i" "$path" ;;
  esac
done
cd /
echo "$pid" > /run/bed/init
while :; do
  /usr/sbin/sshd -D -e -f /run/bed/sshd_config 2>> /run/bed/sshd.log || true
  sleep 0.1
done
