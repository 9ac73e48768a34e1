/* 12040 for 12.4; 0 is CUDA_SUCCESS, 1 CUDA_ERROR_INVALID_VALUE. */
API int cuDriverGetVersion(int *version)
{
	if (!version)
		return 1;
	*version = cuda_version();
	return 0;
}
