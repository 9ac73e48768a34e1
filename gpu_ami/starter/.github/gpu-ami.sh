#!/usr/bin/env bash
# Runs a command of gpu-ami in CI, and does with its exit code what "A month in CI" of gpu-ami's docs/ci.md says: what the
# image is not to blame for is tried a second time, and a failure becomes an annotation that says what to do.
#   bash .github/gpu-ami.sh gpu-ami build out/my-gpu-image --where aws.yml
set -uo pipefail

sweep() { # before machines are launched a second time, in the place of the command
  local place=()
  for ((index = 1; index < $#; index++)); do
    [ "${!index}" != --where ] || { next=$((index + 1)) && place=(--where "${!next}"); }
  done
  gpu-ami sweep "${place[@]}"
}

"$@"
code=$?
if [ "$code" = 4 ] || [ "$code" = 5 ]; then
  seconds=${RETRY_SECONDS:-60}
  [ "$code" = 4 ] || seconds=${CAPACITY_SECONDS:-900}
  echo "::warning title=gpu-ami, exit code $code::tried again in $seconds s"
  case ${2:-} in build | prove | validate) sweep "$@" ;; esac
  sleep "$seconds"
  "$@"
  code=$?
fi
case $code in
  0) exit 0 ;;
  1) what="the image failed a check: report.html and junit.xml name it; mend the image, or waive the check" ;;
  2) what="recipe or usage: the message names file and key; nothing was launched" ;;
  3) what="the build failed: build.log has the output of Packer and Ansible" ;;
  4) what="cloud, network or machine, twice: read the message, then start the job again" ;;
  5) what="no capacity, twice: start the job again later, or add subnets or ways to capacity to the place" ;;
  6) what="the certificate was refused: do not launch or publish the AMI" ;;
  7) what="checks or restarts were left out: run it without -k and --restarts" ;;
  8) what="a defect of gpu-ami, not of the image: report it with the output of the command with --debug" ;;
  130) what="cancelled: the nightly sweep removes what is left" ;;
  *) what="unexpected: read the log of the job" ;;
esac
echo "::error title=gpu-ami, exit code $code::$what"
exit "$code"
