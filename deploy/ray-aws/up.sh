#!/bin/bash
# up.sh REGION BUCKET: create the bucket, the roles and the token if they do not exist, and start the cluster. Run it again after a
# change or an upgrade. Requires the AWS command line, logged in with permission to create roles, and `make install`.
set -eu
region=${1:?"up.sh REGION BUCKET, such as us-east-1 my-tuner-bucket"}
bucket=${2:?"up.sh REGION BUCKET, such as us-east-1 my-tuner-bucket"}
here=$(cd "$(dirname "$0")" && pwd)
export AWS_DEFAULT_REGION=$region

aws s3api head-bucket --bucket "$bucket" 2>/dev/null || aws s3 mb "s3://$bucket"
image=$(aws ssm get-parameter --query Parameter.Value --output text \
  --name /aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id)

# Create a role for machines with one inline policy: NAME POLICY.
role() {
  trust='{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}'
  aws iam get-role --role-name "$1" >/dev/null 2>&1 ||
    aws iam create-role --role-name "$1" --assume-role-policy-document "$trust" >/dev/null
  aws iam put-role-policy --role-name "$1" --policy-name tuner --policy-document "$2"
  aws iam get-instance-profile --instance-profile-name "$1" >/dev/null 2>&1 || {
    aws iam create-instance-profile --instance-profile-name "$1" >/dev/null
    aws iam add-role-to-instance-profile --instance-profile-name "$1" --role-name "$1"
    sleep 15 # AWS takes some seconds until a new instance profile can be used
  }
}
account=$(aws sts get-caller-identity --query Account --output text)
storage="{\"Effect\":\"Allow\",\"Action\":[\"s3:ListBucket\",\"s3:GetObject\",\"s3:PutObject\",\"s3:DeleteObject\"],\"Resource\":[\"arn:aws:s3:::$bucket\",\"arn:aws:s3:::$bucket/*\"]}"
machines="{\"Effect\":\"Allow\",\"Action\":[\"ec2:*\"],\"Resource\":\"*\",\"Condition\":{\"StringEquals\":{\"aws:RequestedRegion\":\"$region\"}}}"
pass="{\"Effect\":\"Allow\",\"Action\":\"iam:PassRole\",\"Resource\":\"arn:aws:iam::$account:role/tuner-worker\"}"
role tuner-worker "{\"Version\":\"2012-10-17\",\"Statement\":[$storage]}"
role tuner-head "{\"Version\":\"2012-10-17\",\"Statement\":[$storage,$machines,$pass]}"

"$here/../ray-up.sh" aws REGION="$region" AMI="$image" <<END
TUNER_STORAGE=s3://$bucket/tuner
TUNER_STORAGE_REGION=$region
END
